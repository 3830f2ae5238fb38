"""llama.cpp: cells per stream, padded; windows in a second cache; recurrent state in f32.

Read from what its loader prints and from its sources: a context is padded to 256 cells and split
over the slots unless they share one stream (`unified`); a window's cache holds the windows of the
sequences in its stream and one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qwisp.errors import BadInput
from qwisp.memory.dialect import F32_BYTES, CacheRows, Dialect, Terms, add_terms, per_head_rows
from qwisp.memory.row_types import is_quantised, row_bytes
from qwisp.spec.layers import FullAttention, Layer, Mla, SlidingWindow
from qwisp.spec.model import ModelSpec

CONTEXT_PAD_CELLS = 256


def pad(cells: int, multiple: int) -> int:
    """Return `cells` rounded up to a multiple.

    >>> pad(1, 256), pad(512, 256)
    (256, 512)
    """
    return -(-cells // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp(Dialect):
    """Options carry the meaning of `-np`, `-kvu`, `-ub`, `--swa-full`, `-fa`, `-ctk` and `-ctv`.

    `pad_cells` is 256 in current builds and was 32 in older ones. `draft_copies` is how many states
    a sequence keeps beside its own to roll back drafts. `mla_latent` is false for files without the
    latent lengths.
    """

    name: ClassVar[str] = "llama.cpp"

    k_type: str | None = "f16"
    v_type: str | None = "f16"
    n_seq: int = 1
    unified: bool = False
    ubatch_tokens: int = 512
    pad_cells: int = CONTEXT_PAD_CELLS
    swa_full: bool = False
    flash_attn: bool = True
    draft_copies: int = 0
    mla_latent: bool = True

    @property
    def sequences(self) -> int:
        """The slots."""
        return self.n_seq

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


def _widest_value(caches: Sequence[Layer]) -> int:
    return max(
        layer.kv_heads * layer.v_dim
        for layer in caches
        if isinstance(layer, FullAttention | SlidingWindow)
    )
