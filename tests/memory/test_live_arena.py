"""This project's own arena, allocated for tiny models, against the prediction: same bytes."""

from __future__ import annotations

import gc

import pytest

from qwisp.engine.spec.families import read_decoder
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.layers import FullAttention, SlidingWindow
from qwisp.spec.model import ModelSpec

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx

from qwisp.engine.cache.arena import Arena, ArenaPlan  # noqa: E402
from qwisp.engine.spec.tiny import TINY  # noqa: E402

CHUNK = 64


@pytest.fixture(autouse=True)
def _exact_buffers():
    """Let no buffer be reused: one kept from an earlier test can be larger than what is asked."""
    gc.collect()
    limit = mx.set_cache_limit(0)
    mx.clear_cache()
    yield
    mx.set_cache_limit(limit)


def allocate(name: str, sessions: list[int]) -> tuple[Arena, int]:
    """Return an arena and what MLX's own counter says that it took."""
    before = mx.get_active_memory()
    plan = ArenaPlan.of_sessions(sessions, CHUNK)
    arena = Arena(read_decoder(TINY[name]), plan, "bfloat16")
    return arena, mx.get_active_memory() - before


@pytest.mark.parametrize("rows", [4096, 16384, 65536])
@pytest.mark.parametrize("name", sorted(TINY))
def test_an_arena_of_one_session_is_the_predicted_footprint_byte_for_byte(name: str, rows: int):
    model = ModelSpec.from_config(TINY[name])
    predicted = cache_bytes(model, rows, Qwisp(chunk_tokens=CHUNK))
    arena, active = allocate(name, [rows])
    assert arena.bytes_by_class() == {
        "full": predicted.full_bytes,
        "sliding": predicted.ring_bytes,
        "state": predicted.fixed_bytes,
    }
    assert active == predicted.total_bytes


@pytest.mark.parametrize("name", sorted(TINY))
def test_unequal_sessions_cost_the_sum_of_what_each_costs(name: str):
    model = ModelSpec.from_config(TINY[name])
    price = SessionBytes(model, chunk_tokens=CHUNK)
    sessions = [4096, 1024, 32]
    arena, active = allocate(name, sessions)
    assert sum(arena.bytes_by_class().values()) == active == sum(map(price.bytes, sessions))


def test_the_tiny_models_hold_rows_rings_and_states_between_them():
    kinds = {
        type(layer) for config in TINY.values() for layer in ModelSpec.from_config(config).caches
    }
    assert {FullAttention, SlidingWindow} < kinds
