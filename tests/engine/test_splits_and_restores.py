"""A prompt cut anywhere, saved anywhere and restored anywhere goes on with the same bits.

And where rows, rings and states lie, by hand and by brute force.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.cache.buffers import Recurrent, Ring, Rows
from qwisp.engine.clients import TokenRequest
from qwisp.engine.model.mixers import Attention
from qwisp.engine.model.step import Window
from qwisp.engine.proof.hostile import HostileOps
from qwisp.engine.spec.tiny import TINY
from qwisp.scheduling.contract import Admit, Capture, Drop, Grant, Move, Place, Restore
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

from .hand import Hand

pytestmark = pytest.mark.mlx

LENGTH, STEPS = 150, 4
ALL = [("hybrid_moe", residue) for residue in range(64)]
SOME = [(model, residue) for model in TINY for residue in (0, 1, 7, 20, 31, 33, 62, 63)]
RESIDUES = ALL + [pair for pair in SOME if pair[0] != "hybrid_moe"]


def requests() -> dict[int, TokenRequest]:
    rng = np.random.default_rng(5)
    prompt = tuple(rng.integers(0, 256, LENGTH).tolist())
    other = tuple(rng.integers(0, 256, 70).tolist())
    same = {i: TokenRequest(prompt=prompt) for i in (0, 1, 2)}
    return same | {9: TokenRequest(prompt=other)}


@lru_cache
def whole(model: str, dtype: str = "float32") -> np.ndarray:
    hand = Hand(model, [256], requests(), dtype=dtype, ops=HostileOps())
    hand.start(0, 0)
    hand.round(decode=[0], steps=STEPS)
    return hand.logits(0)


@pytest.mark.parametrize(("model", "residue"), RESIDUES)
def test_cut_saved_and_restored_at_every_residue(model, residue):
    check_residue(model, residue)


def check_residue(model: str, residue: int) -> None:
    """One run: company decodes, the prompt is cut and saved at 64 + residue, then restored."""
    at = 64 + residue
    hand = Hand(model, [256, 200, 160, 96], requests(), ops=HostileOps(), poisons=True)
    hand.start(9, 3)
    hand.round(decode=[9], steps=2)
    assert hand.start(0, 0, cuts=[at], capture=(77, at)).failed == ()
    hand.round(decode=[9, 0], steps=STEPS)
    hand.end(0, 0)
    assert hand.start(1, 2, restore=(77, at)).failed == ()
    hand.round(decode=[1, 9], steps=2)
    place = hand.places
    hand.round(Move(1, place[2], place[0], LENGTH + 1), decode=[1, 9], steps=1)
    hand.round(decode=[1, 9], steps=STEPS - 3)
    for request_id in (0, 1):
        assert np.array_equal(hand.logits(request_id), whole(model))


@pytest.mark.parametrize("model", ["hybrid", "gemma3"])
def test_restored_in_bf16(model):
    hand = Hand(model, [256, 200], requests(), dtype="bfloat16", ops=HostileOps())
    hand.start(0, 0, capture=(5, LENGTH - 1))
    assert hand.start(1, 1, restore=(5, LENGTH - 1)).failed == ()
    hand.round(decode=[0, 1], steps=STEPS)
    assert np.array_equal(hand.logits(0), whole(model, "bfloat16"))
    assert np.array_equal(hand.logits(1), whole(model, "bfloat16"))


def test_windows_lie_at_multiples_of_the_chunk_wherever_a_prefix_ended():
    """As many as the scheduler grants and the simulator charges: (36, 137] are three chunks."""
    hand, ran = Hand("llama", [256], requests()), []
    place, first = hand.places[0], 36
    while first < 137:
        ran.append(hand.executor._window(place, first, 137))
        first = ran[-1].end
    assert [(w.origin, w.num_rows, w.first, w.end) for w in ran] == [
        (0, 64, 36, 64),
        (64, 64, 64, 128),
        (128, 64, 128, 137),
    ]


def test_chunks_of_256_split_anywhere_too():
    rng = np.random.default_rng(6)
    asked = {i: TokenRequest(prompt=tuple(rng.integers(0, 256, 400).tolist())) for i in (0,)}
    words = []
    for cuts in ([], [1, 255, 256, 300], [128, 399]):
        hand = Hand("hybrid", [512], asked, ops=HostileOps(), chunk=256)
        hand.start(0, 0, cuts=cuts)
        hand.round(decode=[0], steps=STEPS)
        words.append(hand.logits(0))
    assert np.array_equal(words[0], words[1])
    assert np.array_equal(words[0], words[2])


def failure(outcome) -> str:
    (_, reason), *rest = outcome.failed
    assert not rest
    return reason


def test_what_cannot_be_restored_fails_that_stream_alone_with_its_numbers():
    hand = Hand("hybrid", [256, 100, 96], requests())
    hand.start(9, 2)
    hand.start(0, 0, capture=(5, 120))
    too_small = hand.start(1, 1, restore=(5, 120))
    assert failure(too_small) == "prefix blob 5 has 120 rows, the session 100"
    cut_back = hand.start(2, 1, restore=(5, 119))
    assert failure(cut_back) == "prefix blob 5 holds 120 tokens, 119 were asked"
    hand.round(Drop(5))
    assert failure(hand.start(2, 1, restore=(5, 120))) == "prefix blob 5 is gone"
    assert hand.round(decode=[9, 0], steps=2).failed == ()


def test_a_prefix_is_saved_in_the_round_that_reaches_it_or_not_at_all():
    hand = Hand("hybrid", [256], requests())
    hand.start(0, 0)
    late = hand.round(Capture(0, 5, 80))
    assert failure(late) == "stream 0 has 149 tokens, not 80"


def test_a_failed_operation_skips_the_rest_of_its_stream():
    hand = Hand("hybrid", [256, 256], requests())
    outcome = hand.round(
        Admit(0, hand.places[0], LENGTH),
        Restore(0, 99, 10),
        Grant(0, 10, LENGTH - 11, 3, True),
        decode=[0],
    )
    assert outcome.failed == ((1, "prefix blob 99 is gone"),)
    assert hand.script.replies[0].tokens == []


def test_blob_bytes_are_rows_and_state_exactly():
    hand = Hand("hybrid", [256], requests())
    hand.start(0, 0, capture=(5, 100))
    kv = 2 * 2 * 100 * 32 * 4
    state = 4 * 32 * 32 * 4 + 3 * (2 * 2 * 32 + 4 * 32) * 4
    assert hand.executor.blobs.num_bytes == kv + state


def test_the_nan_is_really_there(monkeypatch):
    """One row read too far, into a neighbour, and the logits are NaN: the poison would show."""
    hand = Hand("llama", [200, 200], requests(), poisons=True)
    hand.start(0, 0)
    hand.round(decode=[0])
    assert np.isfinite(hand.logits(0).view(np.float32)).all()
    honest = Rows.keys
    monkeypatch.setattr(Rows, "keys", lambda self, place, n: honest(self, place, n + 1))
    hand.round(decode=[0])
    assert np.isnan(hand.logits(0).view(np.float32)[-1]).all()


# ---- where things lie ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [1, 2, 39, 40, 41, 63, 64, 65, 103, 104, 105, 200, 208, 209])
@pytest.mark.parametrize("rows", [104, 50, 30])
def test_a_ring_shows_each_query_its_window_and_nothing_older(end, rows):
    """Brute force: write position after position, and look what is where.

    104 rows are a window and a prefill chunk; a session of 50 or 30 is shorter than that, and
    one of 30 ends before its window does.
    """
    window, end = 40, min(end, rows) if rows < 40 else end
    layer = SlidingWindow(kv_heads=1, k_dim=4, v_dim=4, window_tokens=window)
    ring = Ring(layer, (7, rows), mx.float32)
    place = Place(1, 7, rows, rows)
    held: dict[int, int] = {}
    for position in range(end):
        (row,) = ring.rows_of(place, range(position, position + 1))
        assert row == 7 + position % rows
        held[row - 7] = position
    assert ring.keys(place, end)[2:] == (7, min(rows, end))
    slots, queries = np.arange(rows + 9), np.arange(max(0, end - 8), end)
    for cut in (window, window - 1, 1):
        seen = Attention._allowed(SimpleNamespace(window=cut), ring, 1, slots, queries, end)
        want = [[s in held and q - cut < held[s] <= q for s in slots] for q in queries]
        assert np.array_equal(seen, want)
    full = Rows(FullAttention(kv_heads=1, k_dim=4, v_dim=4), 300, mx.float32)
    assert full.rows_of(Place(0, 11, 9, 9), range(2, 4)) == [13, 14]
    seen = Attention._allowed(SimpleNamespace(window=None), full, 0, slots, queries, end)
    assert np.array_equal(seen, [[s <= q for s in slots] for q in queries])


def test_key_blocks_follow_from_the_window_alone():
    layer = SlidingWindow(kv_heads=1, k_dim=4, v_dim=4, window_tokens=250)
    ring, full = Ring(layer, (314,), mx.float32), Rows(layer, 2000, mx.float32)
    place = Place(0, 0, 2000, 2000)
    found = {}
    for origin in (0, 192, 448, 1024):
        window = Window(place, origin, 64, origin, origin + 3)
        found[origin] = [
            Attention._num_blocks(SimpleNamespace(window=w), cache, window)
            for w, cache in ((None, full), (250, ring), (250, full))
        ]
    # 64, 256, 512 and 1,088 rows reach; a ring never holds more than 250 + 64,
    # of which the 250 alone would be one block.
    assert found == {0: [1, 1, 1], 192: [1, 1, 1], 448: [2, 2, 2], 1024: [5, 2, 5]}


def test_state_is_written_for_live_rows_only():
    layer = GatedDelta(value_heads=1, key_heads=1, value_dim=1, key_dim=1, conv_kernel=4)
    cache = Recurrent(layer, 4, mx.float32)
    cache.state = mx.arange(4, dtype=mx.float32).reshape(4, 1, 1, 1)
    cache.conv = mx.broadcast_to(mx.arange(4, dtype=mx.float32)[:, None, None], (4, 3, 3)) + 0
    state, conv = cache.read([2, 0])
    assert state.flatten().tolist() == [2, 0]
    assert conv[:, 0, 0].tolist() == [2, 0]
    cache.write([3, 1], mx.full((2, 1, 1, 1), 9.0), mx.full((2, 3, 3), 8.0))
    assert cache.state.flatten().tolist() == [0, 9, 2, 9]
    assert cache.conv[:, 2, 2].tolist() == [0, 8, 2, 8]
    cache.open(Place(3, 0, 1, 1))
    cache.move(Place(2, 0, 1, 1), Place(1, 0, 1, 1), 1, raw=True)
    assert cache.state.flatten().tolist() == [0, 2, 2, 0]
    assert cache.conv[:, 1, 1].tolist() == [0, 2, 2, 0]
    cache.poison(Place(0, 0, 1, 1), 5)  # rows past some token: the state is not among them
    assert cache.state.flatten().tolist() == [0, 2, 2, 0]
