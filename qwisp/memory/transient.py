"""Prefill transient: memory that is there only while a chunk of a prompt passes through a layer.

Where a head size has no fused prefill kernel, or rows are quantised, the scores of
`heads x chunk x context` and the rows of the context are written out beside the cache:

    context x (2 x hidden + 2 x heads x chunk) bytes

and the dequantised rows of a layer if the cache is quantised.

Layers run one after another, so the peak is the largest layer's, and one prompt prefills at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from qwisp.memory.dialect import Dialect
from qwisp.memory.projection import Term
from qwisp.spec.layers import FullAttention, Layer, Mla, PooledAttention, SlidingWindow
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes, format_tokens

# Head sizes for which mx.fast.scaled_dot_product_attention has a fused kernel for many queries.
FUSED_HEAD_DIMS = frozenset({64, 80, 128})
CHUNKS_TOKENS = (4096, 2048, 1024, 512, 256, 128, 64)
HALF_BYTES = 2


class ChunkPlan(NamedTuple):
    """The widest prefill chunk whose peak fits, with that peak and the sentence that says so."""

    chunk_tokens: int
    transient_bytes: int
    says: str


def transient_bytes(
    model: ModelSpec,
    context_tokens: int,
    chunk_tokens: int,
    *,
    dialect: Dialect | None = None,
    is_quantised: bool = False,
) -> int | None:
    """Return the peak bytes of one chunk at the end of `context_tokens`; None if sizes are unknown.

    `chunk_tokens` of 1 is prefill through the decode path, which writes no scores out.
    `dialect` says how many rows a window keeps; without it, the window and one chunk.
    """
    layers = model.attention_caches
    unfused = [layer for layer in layers if is_quantised or not _has_fused_kernel(layer)]
    if chunk_tokens == 1 or not unfused:
        return 0
    if model.hidden is None or model.query_heads is None:
        return None
    per_row = HALF_BYTES * (model.hidden + model.query_heads * chunk_tokens)
    rows = [_rows(layer, context_tokens, chunk_tokens, dialect) for layer in unfused]
    peak = max(rows) * per_row
    if is_quantised:
        # Quantised rows become half precision again before they are multiplied, layer by layer.
        widths = map(_row_elements, unfused)
        peak += max(n * width * HALF_BYTES for n, width in zip(rows, widths, strict=True))
    return peak


def transient_term(
    model: ModelSpec, context_tokens: int, chunk_tokens: int, dialect: Dialect
) -> Term | None:
    """Return the peak as a term; None without one, or where it is part of the engine's own."""
    if not dialect.writes_scores:
        return None
    name = "prefill transient"
    size = transient_bytes(
        model,
        context_tokens,
        chunk_tokens,
        dialect=dialect,
        is_quantised=not dialect.is_16_bit,
    )
    if size is None:
        note = "hidden size or query heads not known"
        return Term(name=name, num_bytes=None, provenance="unmeasured", note=note)
    if size == 0:
        return None
    note = f"one prompt's chunk of {chunk_tokens:,} where no fused kernel exists"
    return Term(name=name, num_bytes=size, provenance="borrowed", note=note)


def _has_fused_kernel(layer: Layer) -> bool:
    """No engine fuses attention over a latent, or over quantised rows."""
    return isinstance(layer, FullAttention | SlidingWindow) and layer.k_dim in FUSED_HEAD_DIMS


def _row_elements(layer: Layer) -> int:
    match layer:
        case FullAttention() | SlidingWindow():
            return layer.kv_heads * (layer.k_dim + layer.v_dim)
        case Mla():
            return layer.kv_lora_rank + layer.rope_dim
        case PooledAttention():
            return layer.row_elements
    raise AssertionError(f"{layer} keeps no rows")


def widest_chunk(
    model: ModelSpec,
    context_tokens: int,
    free_bytes: int,
    *,
    is_quantised: bool = False,
) -> ChunkPlan | None:
    """Return the widest chunk of `CHUNKS_TOKENS` whose peak fits `free_bytes`; None if none does.

    None too where the model's sizes are not known, because then there is no peak to plan by.
    """
    for chunk in CHUNKS_TOKENS:
        peak = transient_bytes(model, context_tokens, chunk, is_quantised=is_quantised)
        if peak is None:
            return None
        if chunk <= context_tokens and peak <= free_bytes:
            says = (
                f"prefill chunk {chunk:,} is the widest that fits: its peak of"
                f" {format_bytes(peak)} at {format_tokens(context_tokens)} against"
                f" {format_bytes(free_bytes)} that are free"
            )
            return ChunkPlan(chunk, peak, says)
    return None


def _rows(layer: Layer, context_tokens: int, chunk_tokens: int, dialect: Dialect | None) -> int:
    if not isinstance(layer, SlidingWindow):
        return context_tokens
    if dialect is not None:
        return dialect.ring_rows(context_tokens, layer.window_tokens)
    return min(context_tokens, layer.window_tokens + chunk_tokens)
