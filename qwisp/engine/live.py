"""Predicted against allocated, live: arenas of tiny models, by class and by MLX's own counter."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from decimal import Decimal

import mlx.core as mx

from qwisp.engine.arena import Arena, ArenaPlan
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.tiny import TINY, tiny_config
from qwisp.memory.dialect_qwisp import Qwisp
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.reconcile import Reconciled
from qwisp.spec.model import ModelSpec
from qwisp.units import KIB, MIB

CONTEXTS_TOKENS = (4 * KIB, 16 * KIB, 64 * KIB)
CHUNK_TOKENS = 64
# A GPU allocator hands out whole pages: its counter may exceed each buffer by less than one.
GPU_PAGE_BYTES = 16 * KIB


def reconcile_live(
    names: Sequence[str] = tuple(TINY), contexts: Sequence[int] = CONTEXTS_TOKENS
) -> list[Reconciled]:
    """Return a row for every class of layer, and for all of them as MLX counts active bytes.

    Nothing may differ by a byte, but that a GPU's counter may hold the rest of a page per buffer.

    >>> {row.verdict for row in reconcile_live(["hybrid"], [4096])}
    {'reproduced'}
    """
    return [row for name in names for context in contexts for row in _rows(name, context)]


def _rows(name: str, context_tokens: int) -> Iterator[Reconciled]:
    config = tiny_config(name)
    dialect = Qwisp(chunk_tokens=CHUNK_TOKENS)
    predicted = cache_bytes(ModelSpec.from_config(config), context_tokens, dialect)
    plan = ArenaPlan.of_sessions([context_tokens], CHUNK_TOKENS)
    # A buffer kept for reuse can be larger than what is asked for, and is counted in full.
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    arena = Arena(DecoderSpec.from_config(config), plan, "bfloat16")
    active = mx.get_active_memory() - before
    allocated = arena.bytes_by_class()
    is_gpu = mx.default_device() == mx.gpu
    pages = len(arena.arrays) * GPU_PAGE_BYTES if is_gpu else 0
    parts = {
        "full": (predicted.full_bytes, allocated["full"]),
        "sliding": (predicted.ring_bytes, allocated["sliding"]),
        "state": (predicted.fixed_bytes, allocated["state"]),
        "all, MLX active": (predicted.total_bytes, active),
    }
    for part, (expected, found) in parts.items():
        if expected or found:
            yield Reconciled(
                id=f"{name}-{context_tokens}",
                engine=dialect.name,
                model=name,
                part=part,
                predicted_bytes=expected,
                # Exact: MIB is a power of two.
                measured_mib=Decimal(found) / Decimal(MIB),
                tolerance_mib=Decimal(pages if "active" in part else 0) / Decimal(MIB),
            )
