"""mlx-lm: caches that grow in steps, rings that hold a chunk on top of the window.

Read from its cache classes. A growing cache adds whole steps of 256 rows when a chunk does not fit,
counted from the rows in use, so its size depends on how the prompt was cut. A rotating cache holds
the last `window - 1` rows and the chunk while a prompt is read, and exactly the window afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from qwisp.errors import BadInput
from qwisp.memory.dialect import (
    CacheRows,
    Dialect,
    ManySequences,
    Terms,
    known_bits,
    per_head_rows,
    state_elements,
)
from qwisp.spec.layers import Layer, Mamba1, Mla, SlidingWindow
from qwisp.spec.model import ModelSpec

STEP_ROWS = 256
UNROTATED_FAMILIES = frozenset(
    {"gemma2", "mistral", "mixtral", "phi3", "phimoe", "starcoder2"}
    | {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
)
"""Families whose windows are kept in growing caches."""

PER_HEAD_FAMILIES = frozenset({"deepseek_v2"})
"""Families with latent attention whose cache nevertheless has a row per head."""


def grown_rows(context_tokens: int, chunk_tokens: int, *, decoded: bool = False) -> int:
    """Return the rows a growing cache has after `context_tokens` in chunks.

    With `decoded` the last token came alone, as the first step after a prompt does.

    >>> [grown_rows(n, 100) for n in (100, 200, 300, 400, 500)]
    [256, 256, 456, 456, 656]
    """
    prompt = context_tokens - decoded
    full, rest = divmod(prompt, chunk_tokens)
    used, rows = _repeat(full, chunk_tokens)
    for size in (rest, int(decoded)):
        rows = _after(used, rows, size)
        used += size
    return rows


def _after(used: int, rows: int, size: int) -> int:
    """Return the rows after `size` more tokens."""
    if used + size <= rows:
        return rows
    # Rows past the ones in use are only dropped if the used ones do not end on a step.
    kept = used if used % STEP_ROWS else rows
    return kept + -(-size // STEP_ROWS) * STEP_ROWS


def _repeat(num_chunks: int, size: int) -> tuple[int, int]:
    """Return (rows in use, rows there are) after equal chunks.

    What happens next depends on `used % STEP_ROWS` and on the spare rows alone, so the pattern
    repeats; whole repetitions are skipped.
    """
    used = rows = done = 0
    seen: dict[tuple[int, int], int] = {}
    while done < num_chunks:
        pattern = (used % STEP_ROWS, rows - used)
        if pattern in seen:
            period = done - seen[pattern]
            skipped = (num_chunks - done) // period * period
            used, rows, done = used + skipped * size, rows + skipped * size, done + skipped
            seen.clear()
            continue
        seen[pattern] = done
        rows = _after(used, rows, size)
        used, done = used + size, done + 1
    return used, rows


def rotating_rows(
    context_tokens: int, window_tokens: int, chunk_tokens: int, *, decoded: bool = False
) -> int:
    """Return the rows a rotating cache has after `context_tokens` in chunks.

    >>> rotating_rows(65536, 512, 512), rotating_rows(65536, 512, 512, decoded=True)
    (1023, 512)
    """
    prompt = context_tokens - decoded
    if chunk_tokens == 1:
        rows = min(window_tokens, -(-prompt // STEP_ROWS) * STEP_ROWS)
    else:
        full, rest = divmod(prompt, chunk_tokens)
        rows = _concatenated(full * chunk_tokens, chunk_tokens, window_tokens)
        if rest == 1:
            rows = _in_place(prompt - 1, rows, window_tokens)
        elif rest:
            rows = _concatenated(prompt, rest, window_tokens)
    return _in_place(prompt, rows, window_tokens) if decoded else rows


def _concatenated(tokens: int, last: int, window_tokens: int) -> int:
    """Return the rows after `tokens` of which the last `last` came as one chunk."""
    return min(tokens - last, window_tokens - 1) + last if tokens else 0


def _in_place(used: int, rows: int, window_tokens: int) -> int:
    """Return the rows after one token more, which is written into the ring itself."""
    if used >= rows and rows < window_tokens:
        rows += min(STEP_ROWS, window_tokens - used)
    return min(rows, window_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxLm(ManySequences):
    """`decoded` says that a token was decoded after the prompt; without it the prompt just ended.

    `kv_bits` quantises the growing caches in groups of `group_elements` with a scale and a bias.
    """

    name: ClassVar[str] = "mlx-lm"
    chunk_field: ClassVar[str | None] = "chunk_tokens"
    writes_scores: ClassVar[bool] = True

    chunk_tokens: int = 2048
    decoded: bool = False
    kv_bits: int | None = None
    group_elements: int = 64

    def full_rows(self, context_tokens: int) -> int:
        """Return the rows of a growing cache."""
        if context_tokens == 0:
            return 0
        rows = grown_rows(context_tokens, self.chunk_tokens, decoded=self.decoded)
        return rows * self.n_seq

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of a rotating cache, which a batch has for each of its sequences."""
        if context_tokens == 0:
            return 0
        chunk = self.chunk_tokens
        rows = rotating_rows(context_tokens, window_tokens, chunk, decoded=self.decoded)
        return rows * self.n_seq

    def rows(self, layer: Layer, spec: ModelSpec) -> CacheRows:
        """Return what one token leaves; rotating caches are never quantised."""
        exact = Dialect.rows(self, layer, spec)
        if self.kv_bits is None or isinstance(layer, SlidingWindow):
            return exact
        return CacheRows(*(self._quantised(size, spec) for size in exact))

    def mla_rows(self, layer: Mla, spec: ModelSpec) -> CacheRows:
        """Return the latent row, or a row per head where a family's code keeps those."""
        if spec.family in PER_HEAD_FAMILIES:
            return per_head_rows(self, layer, spec)
        return Dialect.mla_rows(self, layer, spec)

    def recurrent_terms(self, layer: Layer, spec: ModelSpec) -> Terms:
        """Return one sequence's state; that of Mamba-1 alone is kept in the model's type."""
        terms = Dialect.recurrent_terms(self, layer, spec)
        if isinstance(layer, Mamba1):
            return terms._replace(state_bytes=state_elements(layer) * spec.element_bytes)
        return terms

    def _quantised(self, exact_bytes: int, spec: ModelSpec) -> int:
        elements = exact_bytes // spec.element_bytes
        if self.kv_bits not in (2, 3, 4, 5, 6, 8) or elements % self.group_elements:
            raise BadInput(
                f"rows of {elements} elements at {self.kv_bits} bits in groups of "
                f"{self.group_elements} do not exist",
                "use 4 or 8 bits and a group that divides the head size",
            )
        groups = elements // self.group_elements
        return elements * self.kv_bits // 8 + groups * 2 * spec.element_bytes

    def layer_terms(self, layer: Layer, context_tokens: int, spec: ModelSpec) -> Terms:
        """Return one layer's bytes; some families have no rotating cache for their windows."""
        if isinstance(layer, SlidingWindow) and spec.family in UNROTATED_FAMILIES:
            rows, row = self.full_rows(context_tokens), self.rows(layer, spec)
            return Terms(
                ring_key_bytes=rows * row.key_bytes, ring_value_bytes=rows * row.value_bytes
            )
        return Dialect.layer_terms(self, layer, context_tokens, spec)

    def with_kv_bits(self, bits: int) -> Self:
        """Return the dialect with growing caches of 16, 8 or 4 bits."""
        return replace(self, kv_bits=None if known_bits(bits) == 16 else bits)

    @property
    def is_16_bit(self) -> bool:
        """Whether its growing caches are not quantised."""
        return self.kv_bits is None

    def log_lines(
        self, model: ModelSpec, context_tokens: int, pool_bytes: int | None = None
    ) -> tuple[str, ...]:
        """Return the bytes of the prompt cache."""
        size = sum(self.terms(model.caches, context_tokens, model))
        return (f"Prompt Cache: 1 sequences, {size / 1e9:.2f} GB",)
