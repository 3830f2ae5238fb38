"""What a layout is said to take is what its arena takes, for every cut and catalog model."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import MAX_SESSIONS, Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.spec.catalog import load_model, model_names
from qwisp.spec.layers import FullAttention, GatedDelta, PooledAttention, SlidingWindow
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB

MODELS = {name: load_model(name) for name in model_names()}
CHUNK = 256


def by_hand(layer: object, run: int, ring: int) -> int:
    """Bytes of one layer in 16 bits: of a run of rows, or of a slot with a ring of `ring` rows."""
    match layer:
        case SlidingWindow():
            return ring and 2 * ring * layer.kv_heads * (layer.k_dim + layer.v_dim)
        case FullAttention():
            return 2 * run * layer.kv_heads * (layer.k_dim + layer.v_dim)
        case PooledAttention():
            pooled = math.ceil(run / layer.pool_tokens)
            return 2 * (run * layer.row_elements + pooled * layer.pooled_elements)
        case GatedDelta() if ring:
            state = 4 * layer.value_heads * layer.value_dim * layer.key_dim
            return state + 2 * (layer.conv_kernel - 1) * layer.conv_dim
    return 0


def arena_bytes(model: ModelSpec, layout: Layout, num_rows: int) -> int:
    """Bytes of the arena of a layout, buffer by buffer, as the engine's description says."""
    if layout.kind == "per_request":
        runs, slots = [num_rows], [layout.context_tokens] * layout.lanes
    else:
        runs = slots = [context + layout.margin_rows for context in layout.contexts]
    total = 0
    for layer in model.caches:
        total += sum(n * by_hand(layer, rows, 0) for rows, n in Counter(runs).items())
        window = getattr(layer, "window_tokens", 0)
        for rows, n in Counter(slots).items():
            total += n * by_hand(layer, 0, min(rows, window + CHUNK))
    return total


def random_cut(rng: Random, context: int) -> str:
    items = [f"{rng.randint(1, context)}x{rng.randint(1, 4)}" for _ in range(rng.randint(1, 4))]
    return rng.choice(
        [
            "whole_window",
            f"whole_window:{rng.randint(1, 6)}",
            f"fixed_arena:{rng.randint(1, 2 * context)}",
            ",".join(items),
            "per_request",
            f"per_request:{rng.randint(3 * GIB, 64 * GIB)}",
        ]
    )


@pytest.mark.parametrize("name", sorted(MODELS))
def test_reported_bytes_are_the_arenas_and_a_budget_is_never_passed(name: str) -> None:
    rng, model = Random(name), MODELS[name]
    size, seen = SessionBytes(model, chunk_tokens=CHUNK), set()
    for _ in range(60):
        context = rng.choice([rng.randint(1, 2000), rng.randint(1, model.context_max_tokens)])
        memory = rng.randint(4 * GIB, 64 * GIB)
        layout = parse_layout(
            random_cut(rng, context),
            size=size,
            memory_bytes=memory,
            model_context_tokens=model.context_max_tokens,
            own_context_tokens=context,
            lanes=rng.choice([None, rng.randint(1, 8)]),
            machine_bytes=rng.choice([None, 16 * GIB, 64 * GIB]),
        )
        num_rows, count = RowSpace(layout, size).num_rows, len(layout.contexts)
        reported = layout.num_bytes(size)
        assert reported == arena_bytes(model, layout, num_rows)
        seen.add(layout.kind)
        if layout.kind == "per_request":
            assert reported <= layout.budget_bytes
            more = arena_bytes(model, layout, num_rows + 1)
            assert more > layout.budget_bytes, "a row is wasted"
        elif layout.text == "whole_window" or layout.kind == "fixed_arena":
            assert reported <= memory or count == 1
            assert reported + size.bytes(layout.contexts[0]) > memory or count == MAX_SESSIONS
    assert seen == {"sized", "whole_window", "fixed_arena", "per_request"}


@pytest.mark.parametrize(
    ("name", "lane_bytes", "row_bytes"),
    [
        # 25 windows of 1,024 and a chunk of 256, 8 heads x 2 x 256 in 2 bytes; 5 layers of 2 x 512.
        ("gemma-4-26b-a4b", 25 * 1280 * 8 * 2 * 256 * 2, 5 * 2 * 2 * 512 * 2),
        # 30 states of 32 x 128 x 128 in fp32 and tails of 3 x 8,192; 10 layers of 2 x 2 x 256.
        ("qwen3.6-35b-a3b", 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2), 10 * 2 * 2 * 256 * 2),
        # 36 states as published; 13 x 2,304 a row and 13 x 256 for every four.
        ("qwen3.8-flash-next", 36 * (3 * 10240 * 2 + 48 * 128 * 128 * 4), 13 * (2304 + 64)),
    ],
)
def test_rows_get_what_the_lanes_leave_of_a_budget(
    name: str, lane_bytes: int, row_bytes: int
) -> None:
    model = MODELS[name]
    size = SessionBytes(model, chunk_tokens=CHUNK)
    layout = parse_layout(
        "per_request:4GiB", size=size, memory_bytes=1, model_context_tokens=262144
    )
    space = RowSpace(layout, size)
    left = 4 * GIB - 8 * lane_bytes
    assert left - 4 * row_bytes < space.num_rows * row_bytes <= left
    assert space.committed_bytes == 8 * lane_bytes
    assert layout.num_bytes(size) <= 4 * GIB == layout.budget_bytes
    assert 4 * GIB - layout.num_bytes(size) < 2 * row_bytes


def test_a_stream_is_admitted_by_bytes_that_are_really_left() -> None:
    """Rows of two requests beside eight lanes: the last that fits, and one row more."""
    size = SessionBytes(MODELS["gemma-4-26b-a4b"], chunk_tokens=CHUNK)
    layout = parse_layout(
        "per_request:4GiB", size=size, memory_bytes=1, model_context_tokens=262144
    )
    space = RowSpace(layout, size)
    # 4 GiB less 8 x 250 MiB of rings are 2,096 MiB: 107,315 rows of 20 KiB.
    assert space.num_rows == (4 * GIB - 8 * 250 * MIB) // 20480 == 107_315
    space.take(space.find(100_000))
    assert space.committed_bytes == 8 * 250 * MIB + 100_000 * 20480
    assert space.find(7_316) is None
    assert space.why_not(7_316) == "byte budget"
    assert space.find(7_315) == range(100_000, 107_315)
