"""The arena takes exactly the predicted bytes, and moving takes no more than what moves."""

from __future__ import annotations

import gc

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.build import arena_plan
from qwisp.engine.cache.arena import Arena, ArenaPlan
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import TINY, tiny_config
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Admit, Place, Restore
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.spec.model import ModelSpec
from qwisp.units import MIB

from .hand import Hand
from .runs import CHUNK, prompts

pytestmark = pytest.mark.mlx

ROWS = (400, 264, 136, 72, 40)


@pytest.fixture(autouse=True)
def _exact_buffers():
    """Let no buffer be reused: one kept from an earlier test can be larger than what is asked."""
    gc.collect()
    limit = mx.set_cache_limit(0)
    mx.clear_cache()
    yield
    mx.set_cache_limit(limit)


def spec_of(name: str, dtype: str) -> ModelSpec:
    return ModelSpec.from_config({**tiny_config(name), "dtype": dtype})


def predicted(spec: ModelSpec, rows: int) -> dict[str, int]:
    """Return the bytes of one session by layer class, from layer geometry alone."""
    terms = Qwisp(chunk_tokens=CHUNK).terms(spec.caches, rows, spec)
    return {
        "full": terms.full_key_bytes + terms.full_value_bytes,
        "sliding": terms.ring_key_bytes + terms.ring_value_bytes,
        "state": terms.state_bytes + terms.conv_bytes,
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(TINY))
def test_allocated_bytes_equal_prediction_per_layer_class(name, dtype):
    spec = spec_of(name, dtype)
    before = mx.get_active_memory()
    plan = ArenaPlan.of_sessions(ROWS, CHUNK)
    arena = Arena(read_decoder(tiny_config(name)), plan, dtype)
    by_session = [predicted(spec, rows) for rows in ROWS]
    expected = {kind: sum(p[kind] for p in by_session) for kind in by_session[0]}
    assert arena.bytes_by_class() == expected
    session = SessionBytes(spec, None, CHUNK)
    total = sum(session.bytes(rows) for rows in ROWS)
    assert sum(expected.values()) == total
    assert mx.get_active_memory() - before == total


CUTS = (
    "whole_window",
    "whole_window:3",
    "fixed_arena:90",  # its ring is shorter than window + chunk
    "fixed_arena:700",
    "300,120x2,50",
    "per_request",
    "per_request:3MiB",
)


@pytest.mark.parametrize("text", CUTS)
@pytest.mark.parametrize("name", ["hybrid", "llama", "gemma3", "gemma4"])
def test_every_cut_allocates_what_it_reports(name, text):
    """`num_bytes` is what plan and replay print; MLX counts what is really there."""
    spec = spec_of(name, "bfloat16")
    size = SessionBytes(spec, None, CHUNK)
    layout = parse_layout(
        text, size=size, memory_bytes=5 * MIB, model_context_tokens=1000, own_context_tokens=None
    )
    reported = layout.num_bytes(size)
    plan = arena_plan(RowSpace(layout, size), layout, CHUNK)
    before = mx.get_active_memory()
    arena = Arena(read_decoder(tiny_config(name)), plan, "bfloat16")
    assert mx.get_active_memory() - before == reported
    assert sum(arena.bytes_by_class().values()) == reported
    if layout.kind == "per_request":
        assert layout.budget_bytes - size.row_bytes < reported <= layout.budget_bytes
        assert len(plan.slot_rows) == 8


def test_free_cuts_allocate_their_rows_once_and_rings_and_state_per_lane():
    """By hand. gemma3: rows of 2 heads x 32 keys and values in fp32, 512 bytes in each layer; two
    of three layers have windows of 40. hybrid: a state of 4 heads x 32 x 32 and a tail of 3 x 256.
    """
    for name, budget, expected in (
        # 4 lanes x 2 rings of min(512, 40 + 64) rows take 425,984; 1,000 rows of one layer more.
        ("gemma3", 425_984 + 512_511, {"full": 512_000, "sliding": 425_984, "state": 0}),
        # 4 lanes x 4 x (4,096 + 768) bytes take 77,824.
        ("hybrid", 77_824 + 512_511, {"full": 512_000, "sliding": 0, "state": 77_824}),
    ):
        size = SessionBytes(spec_of(name, "float32"), None, CHUNK)
        layout = Layout.free(budget, 512, lanes=4)
        space = RowSpace(layout, size)
        assert space.num_rows == 1000
        decoder_spec = read_decoder(tiny_config(name))
        arena = Arena(decoder_spec, arena_plan(space, layout, CHUNK), "float32")
        assert arena.bytes_by_class() == expected


@pytest.mark.parametrize("name", ["hybrid", "gemma3"])
def test_the_peak_of_a_move_is_at_most_the_arena_and_the_moved_session(name):
    decoder_spec = read_decoder(tiny_config(name))
    rows = (9000, 5000, 3000)
    arena = Arena(decoder_spec, ArenaPlan.of_sessions(rows, CHUNK), "float32")
    source, target = Place(2, 14000, 3000, 3000), Place(0, 0, 9000, 9000)
    session_bytes = SessionBytes(spec_of(name, "float32"), None, CHUNK).bytes(3000)
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    arena.move(source, target, 3000)
    assert mx.get_active_memory() == held
    # Through pieces of 1,024 rows of one layer: far below the moved session, even for small models.
    assert mx.get_peak_memory() - held <= session_bytes
    arena.move(target, target._replace(start_row=700), 3000)  # a slide overlaps itself
    assert mx.get_peak_memory() - held <= session_bytes


def test_a_move_keeps_every_bit_even_where_ranges_overlap():
    decoder_spec = read_decoder(tiny_config("llama"))
    rng = np.random.default_rng(0)
    for distance in (-700, -3, 3, 700, 1500):
        arena = Arena(decoder_spec, ArenaPlan.of_sessions((6000,), CHUNK), "bfloat16")
        rows = arena.buffers[0]
        words = rng.integers(0, 2**16, rows.k.shape, np.uint16)  # NaN and -0.0 among them
        rows.k = mx.array(words).view(mx.bfloat16)
        source = Place(0, 2000, 2500, 2500)
        arena.move(source, source._replace(start_row=2000 + distance), 2500)
        got = np.array(rows.k.view(mx.uint16))[:, 2000 + distance : 4500 + distance]
        assert np.array_equal(got, words[:, 2000:4500])


def test_the_peak_of_a_restore_is_at_most_the_arena_and_the_restored_session():
    asked = prompts([400, 400])
    hand = Hand("hybrid", [20_000, 500], asked | {1: asked[0]})
    hand.start(0, 1, capture=(3, 399))
    blob_bytes = hand.executor.blobs.num_bytes
    hand.round(Admit(1, hand.places[0], 400))
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    assert hand.round(Restore(1, 3, 399)).failed == ()
    assert mx.get_active_memory() <= held
    assert mx.get_peak_memory() - held <= blob_bytes


def test_steps_never_copy_the_arena():
    """In place: a decode step's peak does not grow with the arena."""
    peaks = []
    for rows in (4_000, 40_000):
        hand = Hand("llama", [rows, 200], prompts([30, 20]))
        hand.start(0, 0)
        hand.start(1, 1)
        hand.round(decode=[0, 1], steps=3)
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        hand.round(decode=[0, 1], steps=10)
        peaks.append(mx.get_peak_memory() - held)
    # When a temporary is freed differs by kilobytes between runs; a copied arena is megabytes.
    assert peaks[1] <= peaks[0] + 65_536


def test_sliding_window_prefill_needs_a_third_of_the_usual_cache_bytes(capsys):
    """The ring holds window + C rows; the usual cache takes a whole prompt chunk beside."""
    models = pytest.importorskip("mlx_lm.models.gemma3_text")
    from mlx_lm.models.cache import make_prompt_cache

    config = {**tiny_config("gemma3"), "sliding_window": 256}
    tokens = 2048
    peer = models.Model(models.ModelArgs.from_dict(config))
    cache = make_prompt_cache(peer)
    mx.eval(peer(mx.zeros((1, tokens), mx.int32), cache=cache))
    theirs = sum(
        c.keys.nbytes + c.values.nbytes for c in cache if type(c).__name__ == "RotatingKVCache"
    )
    spec = read_decoder(config)
    arena = Arena(spec, ArenaPlan.of_sessions([4096], 256), "float32")
    ours = arena.bytes_by_class()["sliding"]
    with capsys.disabled():
        print(f"\nsliding-window prefill of {tokens} tokens: {ours:,} against {theirs:,} bytes")
    assert 3 * ours <= theirs
