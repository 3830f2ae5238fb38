"""llama.cpp: cells per stream, padded; windows in a second cache; recurrent state in f32.

Read from what its loader prints and from its sources: a context is padded to 256 cells and split
over the slots unless they share one stream (`unified`); a window's cache holds the windows of the
sequences in its stream and one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from qwisp.errors import BadInput
from qwisp.memory.dialect import (
    F32_BYTES,
    CacheRows,
    Dialect,
    ManySequences,
    Spelling,
    Terms,
    add_terms,
    per_head_rows,
)
from qwisp.memory.row_types import is_quantised, row_bytes
from qwisp.spec.layers import FullAttention, Layer, Mla, Recurrent, SlidingWindow
from qwisp.spec.model import ModelSpec
from qwisp.units import MIB

CONTEXT_PAD_CELLS = 256


def pad(cells: int, multiple: int) -> int:
    """Return `cells` rounded up to a multiple.

    >>> pad(1, 256), pad(512, 256)
    (256, 512)
    """
    return -(-cells // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp(ManySequences):
    """Options carry the meaning of `-np`, `-kvu`, `-ub`, `--swa-full`, `-fa`, `-ctk` and `-ctv`.

    `pad_cells` is 256 in current builds and was 32 in older ones. `draft_copies` is how many states
    a sequence keeps beside its own to roll back drafts. `mla_latent` is false for files without the
    latent lengths.
    """

    name: ClassVar[str] = "llama.cpp"
    chunk_field: ClassVar[str | None] = "ubatch_tokens"
    has_own_prefill: ClassVar[bool] = True
    spellings: ClassVar[tuple[Spelling, ...]] = (
        Spelling(
            ("-c", "--ctx-size"),
            "llama.cpp: context over all slots.",
            value="tokens",
            sets="all contexts",
        ),
        Spelling(("-ctk", "--cache-type-k"), "llama.cpp: type of key rows.", fields=("k_type",)),
        Spelling(("-ctv", "--cache-type-v"), "llama.cpp: type of value rows.", fields=("v_type",)),
        Spelling(
            ("-kvu", "--kv-unified"), "llama.cpp: one stream.", value="flag", fields=("unified",)
        ),
        Spelling(
            ("--swa-full",), "llama.cpp: windows in full.", value="flag", fields=("swa_full",)
        ),
        Spelling(
            ("-fa", "--flash-attn"),
            "llama.cpp: flash attention.",
            value=("on", "off", "auto"),
            fields=("flash_attn",),
            read=lambda word: word != "off",
        ),
    )

    k_type: str | None = "f16"
    v_type: str | None = "f16"
    unified: bool = False
    ubatch_tokens: int = 512
    pad_cells: int = CONTEXT_PAD_CELLS
    swa_full: bool = False
    flash_attn: bool = True
    draft_copies: int = 0
    mla_latent: bool = True

    @property
    def streams(self) -> int:
        """How many caches of cells there are: one for all slots if they share it."""
        return 1 if self.unified else self.n_seq

    def stream_cells(self, context_tokens: int) -> int:
        """Return the cells of one stream: the padded context, or a slot's padded share of it."""
        cells = pad(context_tokens, CONTEXT_PAD_CELLS)
        return pad(cells // self.streams, CONTEXT_PAD_CELLS)

    def window_cells(self, context_tokens: int, window_tokens: int) -> int:
        """Return the cells of one stream's window cache."""
        cells = self.stream_cells(context_tokens)
        if self.swa_full:
            return cells
        windows = window_tokens * (self.n_seq // self.streams)
        return min(cells, pad(windows + self.ubatch_tokens, self.pad_cells))

    def full_rows(self, context_tokens: int) -> int:
        """Return the cells of a full-attention layer over all streams."""
        return self.stream_cells(context_tokens) * self.streams

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the cells of a window layer over all streams."""
        return self.window_cells(context_tokens, window_tokens) * self.streams

    def states(self) -> int:
        """Return the recurrent states: per slot one, and one for every draft step."""
        return self.n_seq * (1 + self.draft_copies)

    def conv_element_bytes(self, spec: ModelSpec) -> int:
        """Return f32, whatever the model's type."""
        return F32_BYTES

    def mla_rows(self, layer: Mla, spec: ModelSpec) -> CacheRows:
        """Return the latent row if the file allows it, else a row per head."""
        if self.mla_latent:
            return Dialect.mla_rows(self, layer, spec)
        return per_head_rows(self, layer, spec)

    def terms(self, caches: Sequence[Layer], context_tokens: int, spec: ModelSpec) -> Terms:
        """Return the bytes of all caches; without flash attention all value rows are the widest."""
        return add_terms(self._widened(layer, caches, context_tokens, spec) for layer in caches)

    def _widened(
        self, layer: Layer, caches: Sequence[Layer], context_tokens: int, spec: ModelSpec
    ) -> Terms:
        """Return one layer's bytes. Values are kept transposed without flash attention, in one
        width for all layers; a quantised row cannot be transposed.
        """
        terms = self.layer_terms(layer, context_tokens, spec)
        if self.flash_attn or not isinstance(layer, FullAttention | SlidingWindow):
            return terms
        value_type = self.v_type or "f16"
        if is_quantised(value_type):
            raise BadInput(
                f"values of type {value_type} need flash attention",
                "turn flash attention on, or use f16 values",
            )
        row = row_bytes(value_type, _widest_value(caches))
        if isinstance(layer, FullAttention):
            return terms._replace(full_value_bytes=self.full_rows(context_tokens) * row)
        rows = self.ring_rows(context_tokens, layer.window_tokens)
        return terms._replace(ring_value_bytes=rows * row)

    def unchunked(self, context_tokens: int) -> Self:
        """Return the dialect with windows kept in full."""
        return replace(self, swa_full=True)

    def engine_context(self, context_tokens: int, lanes: int) -> int:
        """Return the context over all slots, which is split over them unless they share it.

        >>> LlamaCpp(n_seq=4).engine_context(8192, 4), LlamaCpp(unified=True).engine_context(8, 4)
        (32768, 8)
        """
        return context_tokens if self.unified else context_tokens * lanes

    def lane_context(self, engine_tokens: int, lanes: int) -> int:
        """Return a slot's share of the context, or all of it if they share it."""
        return engine_tokens if self.unified else max(1, engine_tokens // max(1, lanes))

    def log_lines(
        self, model: ModelSpec, context_tokens: int, pool_bytes: int | None = None
    ) -> tuple[str, ...]:
        """Return a line for the cells, one for those of windows, and one for recurrent states."""
        return tuple(self._log_lines(model, context_tokens))

    def _log_lines(self, model: ModelSpec, context_tokens: int) -> Iterator[str]:
        terms = self.terms(model.caches, context_tokens, model)
        windows = [layer for layer in model.caches if isinstance(layer, SlidingWindow)]
        recurrent = sum(isinstance(layer, Recurrent) for layer in model.caches)
        full = len(model.caches) - len(windows) - recurrent
        if full:
            cells = self.stream_cells(context_tokens)
            yield self._kv_line(cells, full, terms.full_key_bytes, terms.full_value_bytes)
        if windows:
            cells = self.window_cells(context_tokens, windows[0].window_tokens)
            keys, values = terms.ring_key_bytes, terms.ring_value_bytes
            yield self._kv_line(cells, len(windows), keys, values)
        if recurrent:
            yield self._state_line(len(model.layers), terms)

    def _kv_line(self, cells: int, layers: int, keys: int, values: int) -> str:
        return (
            f"llama_kv_cache: size = {(keys + values) / MIB:7.2f} MiB ({cells:6d} cells,"
            f" {layers:3d} layers, {self.n_seq:2d}/{self.streams} seqs),"
            f" K ({self.k_type}): {keys / MIB:7.2f} MiB,"
            f" V ({self.v_type}): {values / MIB:7.2f} MiB"
        )

    def _state_line(self, layers: int, terms: Terms) -> str:
        """Its layers are all of the model's, and a cell is a sequence with all its copies."""
        conv, state = terms.conv_bytes, terms.state_bytes
        return (
            f"llama_memory_recurrent: size = {(conv + state) / MIB:7.2f} MiB"
            f" ({self.n_seq:6d} cells, {layers:3d} layers, {self.n_seq:2d} seqs"
            f" {self.draft_copies:2d} rs_seq),"
            f" R (f32): {conv / MIB:7.2f} MiB, S (f32): {state / MIB:7.2f} MiB"
        )


def _widest_value(caches: Sequence[Layer]) -> int:
    return max(
        layer.kv_heads * layer.v_dim
        for layer in caches
        if isinstance(layer, FullAttention | SlidingWindow)
    )
