"""The same engine in another setting: other row types, other lanes, prefill without chunks."""

from __future__ import annotations

from dataclasses import fields, replace

from qwisp.errors import BadInput
from qwisp.memory.dialect import Dialect
from qwisp.memory.dialect_mlx_lm import MlxLm

# MLX's groups of 64 carry a 16-bit scale and bias: 8.5 and 4.5 bits an element, as q8_0 and q4_0.
_ROW_TYPES = {8: "q8_0", 4: "q4_0"}
_PAGED = frozenset({"vllm", "sglang"})


def with_kv_bits(dialect: Dialect, bits: int) -> Dialect:
    """Return the dialect with rows of 16, 8 or 4 bits; raises `BadInput` for other widths.

    >>> with_kv_bits(Dialect(), 8).k_type
    'q8_0'
    """
    if bits not in (16, *_ROW_TYPES):
        raise BadInput(f"cache rows of {bits} bits are not known", "use 16, 8 or 4")
    if isinstance(dialect, MlxLm):
        return replace(dialect, kv_bits=None if bits == 16 else bits)
    if dialect.name in _PAGED:
        if bits == 4:
            raise BadInput(f"{dialect.name} keeps no rows of 4 bits", "use 16 or 8")
        row = "fp8" if bits == 8 else None
    else:
        row = _ROW_TYPES.get(bits)
    return replace(dialect, k_type=row, v_type=row)


def is_16_bit(dialect: Dialect) -> bool:
    """Whether rows are kept in 16 bits or more, so that 8-bit rows would be smaller.

    >>> is_16_bit(Dialect()), is_16_bit(Dialect(k_type="q8_0", v_type="q8_0"))
    (True, False)
    """
    if isinstance(dialect, MlxLm):
        return dialect.kv_bits is None
    wide = {None, "f16", "bf16", "f32"}
    return dialect.k_type in wide and dialect.v_type in wide


def with_lanes(dialect: Dialect, lanes: int) -> Dialect:
    """Return the dialect for so many sequences, where it counts them itself."""
    return replace(dialect, n_seq=lanes) if _has(dialect, "n_seq") else dialect


def engine_context(dialect: Dialect, context_tokens: int, lanes: int) -> int:
    """Return what the engine calls its context when every lane is to hold `context_tokens`.

    llama.cpp splits one context over its slots, unless they share it; all others mean a lane's.

    >>> from qwisp.memory.dialect_llama_cpp import LlamaCpp
    >>> engine_context(LlamaCpp(n_seq=4), 8192, 4), engine_context(Dialect(), 8192, 4)
    (32768, 8192)
    """
    if _has(dialect, "unified") and not dialect.unified:  # type: ignore[attr-defined]
        return context_tokens * lanes
    return context_tokens


def with_chunk(dialect: Dialect, chunk_tokens: int) -> Dialect:
    """Return the dialect with another prefill chunk, where it has one."""
    for name in ("chunk_tokens", "ubatch_tokens"):
        if _has(dialect, name):
            return replace(dialect, **{name: chunk_tokens})
    return dialect


def chunk_of(dialect: Dialect) -> int | None:
    """Return the prefill chunk of a dialect, None where rows do not depend on one."""
    return getattr(dialect, "chunk_tokens", None) or getattr(dialect, "ubatch_tokens", None)


def unchunked(dialect: Dialect, context_tokens: int) -> Dialect:
    """Return the dialect as if nothing left a ring before the prompt ends: whole contexts.

    >>> from qwisp.memory.dialect_qwisp import Qwisp
    >>> unchunked(Qwisp(), 65536).ring_rows(65536, 1024)
    65536
    """
    if _has(dialect, "chunked"):
        return replace(dialect, chunked=False)
    if _has(dialect, "swa_full"):
        return replace(dialect, swa_full=True)
    return with_chunk(dialect, context_tokens)


def _has(dialect: Dialect, name: str) -> bool:
    return any(field.name == name for field in fields(dialect))
