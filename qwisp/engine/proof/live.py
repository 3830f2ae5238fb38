"""Predicted against allocated, live: weights and arenas, by term and by MLX's own counter."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

import mlx.core as mx

from qwisp.engine.build import arena_plan
from qwisp.engine.cache.arena import Arena, ArenaPlan
from qwisp.engine.spec.tiny import MORE_TINY, TINY
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.engine.weights.loading import load_decoder
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.reconcile import Reconciled
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import DEFAULT_LANES, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.units import KIB, MIB

FAMILIES = tuple(f"tiny:{name}" for name in (*TINY, *MORE_TINY))
CONTEXTS_TOKENS = (4 * KIB, 64 * KIB)
CHUNK_TOKENS = 64
# A GPU allocator hands out whole pages: its counter may exceed each buffer by less than one.
GPU_PAGE_BYTES = 16 * KIB
ACTIVE = ", MLX active"


def reconcile_live(
    names: Sequence[str] = FAMILIES,
    contexts: Sequence[int] = CONTEXTS_TOKENS,
    *,
    dtype: str | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> list[Reconciled]:
    """Return a row per term of each model: its weights, the arena of one session by class, and the
    arena of every way to cut about as much memory.

    What was predicted stands beside what the arrays hold, and beside what MLX counts as active.
    Nothing may differ by a byte, but that a GPU's counter may hold the rest of a page per buffer.

    >>> {row.verdict for row in reconcile_live(["tiny:hybrid"], [4096])}
    {'reproduced'}
    """
    rows: list[Reconciled] = []
    gc.collect()
    gc.freeze()  # two collections a row: they need not walk what was there before
    try:
        for name in names:
            with _counted() as counted:
                model = load_decoder(name, dtype=dtype)
            rows += _weight_rows(model, counted[0])
            for context in contexts:
                rows += _arena_rows(model, context, chunk_tokens)
                rows += _cut_rows(model, context, chunk_tokens)
            del model
    finally:
        gc.unfreeze()
    return rows


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Yield a list that will hold by how much MLX's active bytes grew.

    Nothing is kept for reuse meanwhile: such a buffer can be larger than what is asked for, and is
    counted in full.
    """
    limit = mx.set_cache_limit(0)
    gc.collect()
    mx.clear_cache()
    before, grown = mx.get_active_memory(), []
    try:
        yield grown
        gc.collect()
        grown.append(mx.get_active_memory() - before)
    finally:
        mx.set_cache_limit(limit)


def _weight_rows(model: LoadedModel, active: int) -> Iterator[Reconciled]:
    arrays = model.decoder.arrays
    held = sum(array.nbytes for array in arrays)
    yield _row(model, "weights", "weights", model.weight_bytes, held, 0)
    yield _row(model, "weights", "weights" + ACTIVE, model.weight_bytes, active, len(arrays))


def _arena_rows(model: LoadedModel, context: int, chunk_tokens: int) -> Iterator[Reconciled]:
    predicted = cache_bytes(model.spec, context, Qwisp(chunk_tokens=chunk_tokens))
    plan = ArenaPlan.of_sessions([context], chunk_tokens)
    with _counted() as counted:
        arena = Arena(model.decoder.spec, plan, model.dtype)
    allocated, name = arena.bytes_by_class(), f"{context}"
    parts = {
        "full": (predicted.full_bytes, allocated["full"], 0),
        "sliding": (predicted.ring_bytes, allocated["sliding"], 0),
        "state": (predicted.fixed_bytes, allocated["state"], 0),
        "all" + ACTIVE: (predicted.total_bytes, counted[0], len(arena.arrays)),
    }
    for part, (expected, found, buffers) in parts.items():
        if expected or found:
            yield _row(model, name, part, expected, found, buffers)


def _cut_rows(model: LoadedModel, context: int, chunk_tokens: int) -> Iterator[Reconciled]:
    """Yield what a layout of each kind reports beside what its arena takes."""
    size = SessionBytes(model.spec, None, chunk_tokens)
    part = max(1, context // 4)
    budget = (DEFAULT_LANES - 1) * size.lane_bytes(context) + size.bytes(context)
    cuts = {
        "whole_window:1": context,
        f"fixed_arena:{part}": context,
        f"{part},{max(1, part // 2)}x2": part,
        f"per_request:{budget}": context,
    }
    for text, own in cuts.items():
        layout = parse_layout(
            text,
            size=size,
            memory_bytes=size.bytes(context),
            model_context_tokens=context,
            own_context_tokens=own,
        )
        plan = arena_plan(RowSpace(layout, size), layout, chunk_tokens)
        reported = layout.num_bytes(size)
        with _counted() as counted:
            arena = Arena(model.decoder.spec, plan, model.dtype)
        held, name = sum(arena.bytes_by_class().values()), f"{context}-{layout.kind}"
        yield _row(model, name, text, reported, held, 0)
        yield _row(model, name, text + ACTIVE, reported, counted[0], len(arena.arrays))
        del arena  # the next one is counted alone


def _row(
    model: LoadedModel, what: str, part: str, expected: int, found: int, buffers: int
) -> Reconciled:
    """Return a row; `buffers` is how many the counter may round up to a page, on a GPU."""
    pages = 0 if mx.default_device() == mx.Device(mx.cpu) else buffers * GPU_PAGE_BYTES
    return Reconciled(
        id=f"{model.name}-{what}",
        engine=Qwisp.name,
        model=model.name,
        part=part,
        predicted_bytes=expected,
        measured_mib=Decimal(found) / Decimal(MIB),  # exact: a power of two
        tolerance_mib=Decimal(pages) / Decimal(MIB),
    )
