"""The line an engine's own log will print about its cache, so that the two can be held together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from qwisp.memory.dialect import Dialect
from qwisp.memory.dialect_llama_cpp import LlamaCpp
from qwisp.memory.dialect_mlx_lm import MlxLm
from qwisp.memory.dialect_sglang import Sglang
from qwisp.memory.dialect_vllm import Vllm
from qwisp.memory.footprint import CacheFootprint, cache_bytes
from qwisp.spec.layers import Recurrent, SlidingWindow
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB


class Pool(NamedTuple):
    """What a pool of so many bytes holds: the tokens a log prints, and whole contexts at once."""

    tokens: int
    contexts: float


def log_lines(
    model: ModelSpec, dialect: Dialect, context_tokens: int, pool_bytes: int | None = None
) -> tuple[str, ...]:
    """Return the lines for `context_tokens` in the engine's own meaning of a context.

    `pool_bytes` is what an engine with a pool has left for it; without it, a pool prints nothing.
    An engine that prints no such line gives none.
    """
    match dialect:
        case LlamaCpp():
            return tuple(_llama_cpp(model, dialect, context_tokens))
        case Vllm() | Sglang() if pool_bytes is not None and pool_bytes > 0:
            return tuple(_pool(model, dialect, context_tokens, pool_bytes))
        case MlxLm():
            size = cache_bytes(model, context_tokens, dialect).total_bytes
            return (f"Prompt Cache: 1 sequences, {size / 1e9:.2f} GB",)
    return ()


def pool_of(model: ModelSpec, dialect: Vllm | Sglang, context_tokens: int, pool_bytes: int) -> Pool:
    """Return what a pool holds. In a hybrid the printed tokens are not what fits: a state takes
    pages of every sequence too, so capacity is counted in pages.
    """
    caches = model.caches
    is_hybrid = any(isinstance(layer, Recurrent) for layer in caches)
    if isinstance(dialect, Vllm) and is_hybrid:
        pages = dialect.pages(caches, model)
        num = pool_bytes // pages.bytes_each
        return Pool(pages.printed_tokens(num), num / pages.of_sequence(context_tokens))
    row = sum(sum(dialect.rows(layer, model)) for layer in model.attention_caches)
    block = getattr(dialect, "block_tokens", 1)
    tokens = pool_bytes // (row * block) * block
    return Pool(tokens, tokens / context_tokens)


def _llama_cpp(model: ModelSpec, dialect: LlamaCpp, context_tokens: int) -> Iterator[str]:
    size = cache_bytes(model, context_tokens, dialect)
    windows = [layer for layer in model.caches if isinstance(layer, SlidingWindow)]
    recurrent = sum(isinstance(layer, Recurrent) for layer in model.caches)
    full = len(model.caches) - len(windows) - recurrent
    terms = size.terms
    if full:
        cells = dialect.stream_cells(context_tokens)
        yield _kv_line(dialect, cells, full, terms.full_key_bytes, terms.full_value_bytes)
    if windows:
        cells = dialect.window_cells(context_tokens, windows[0].window_tokens)
        keys, values = terms.ring_key_bytes, terms.ring_value_bytes
        yield _kv_line(dialect, cells, len(windows), keys, values)
    if recurrent:
        yield _state_line(dialect, len(model.layers), size)


def _kv_line(dialect: LlamaCpp, cells: int, layers: int, keys: int, values: int) -> str:
    return (
        f"llama_kv_cache: size = {(keys + values) / MIB:7.2f} MiB ({cells:6d} cells,"
        f" {layers:3d} layers, {dialect.n_seq:2d}/{dialect.streams} seqs),"
        f" K ({dialect.k_type}): {keys / MIB:7.2f} MiB,"
        f" V ({dialect.v_type}): {values / MIB:7.2f} MiB"
    )


def _state_line(dialect: LlamaCpp, layers: int, size: CacheFootprint) -> str:
    """Its layers are all of the model's, and a cell is a sequence, however many copies it has."""
    conv, state = size.conv_bytes, size.state_bytes
    return (
        f"llama_memory_recurrent: size = {(conv + state) / MIB:7.2f} MiB"
        f" ({dialect.n_seq:6d} cells, {layers:3d} layers, {dialect.n_seq:2d} seqs"
        f" {dialect.draft_copies:2d} rs_seq),"
        f" R (f32): {conv / MIB:7.2f} MiB, S (f32): {state / MIB:7.2f} MiB"
    )


def _pool(
    model: ModelSpec, dialect: Vllm | Sglang, context_tokens: int, pool_bytes: int
) -> Iterator[str]:
    pool = pool_of(model, dialect, context_tokens, pool_bytes)
    if isinstance(dialect, Vllm):
        yield f"GPU KV cache size: {pool.tokens:,} tokens"
        yield (
            f"Maximum concurrency for {context_tokens:,} tokens per request: {pool.contexts:.2f}x"
        )
        return
    rows = [dialect.rows(layer, model) for layer in model.attention_caches]
    keys = pool.tokens * sum(row.key_bytes for row in rows)
    values = pool.tokens * sum(row.value_bytes for row in rows)
    yield (
        f"KV Cache is allocated. #tokens: {pool.tokens}, K size: {keys / GIB:.2f} GB,"
        f" V size: {values / GIB:.2f} GB"
    )


def is_pooled(dialect: Dialect) -> bool:
    """Whether the engine fills what memory is left with one pool, whatever the context."""
    return isinstance(dialect, Vllm | Sglang)
