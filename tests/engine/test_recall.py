"""Models built to recall: state only, full attention only, sliding-window rings only.

Eight lanes with texts of their own are cut, saved, restored, moved and paused while they answer.
Every reply must be right, token by token; with one copy gone wrong, replies must fail.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.cache.buffers import Recurrent, Ring, Rows
from qwisp.engine.clients import TokenRequest
from qwisp.engine.model.ops import Ops
from qwisp.engine.proof.hostile import HostileOps
from qwisp.engine.proof.recall_run import recall_in_a_crowd
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.text.recall_text import KINDS, RING_WINDOW, VOCAB, Kind, Recall, question
from qwisp.engine.weights.recall import build, codes
from qwisp.scheduling.contract import Move
from qwisp.spec.data_files import data_path

from .hand import Hand

pytestmark = pytest.mark.mlx

LANES, REPLY, CHUNK = 8, 16, 256
TOKENS = 300  # of a short haystack, all of which lies in rings and rows
DEPTHS = tuple(np.linspace(0.1, 0.9, LANES))


def asked(kind: Kind, tokens: int, lead_tokens: int = 0) -> list[Recall]:
    rng = np.random.default_rng(11)
    return [
        question(kind, tokens, rng, depth=d, reply_tokens=REPLY, lead_tokens=lead_tokens)
        for d in DEPTHS
    ]


def right(hand: Hand, questions: list[Recall]) -> list[int]:
    """Return how many tokens of each reply were right before the first wrong one."""
    counts = []
    for i, q in enumerate(questions):
        same = [a == b for a, b in zip(hand.script.replies[i].tokens, q.reply, strict=True)]
        counts.append(same.index(False) if False in same else len(same))
    return counts


def answered(
    kind: Kind,
    questions: list[Recall],
    *,
    after_move: Callable[[Hand, int, int], None] = lambda hand, source, target: None,
    safeguards: Safeguards | None = None,
    ops: Ops | None = None,
) -> Hand:
    """Answer all questions in eight lanes, each restored from a blob, moved and paused on the way.

    Session 8 is free at first: lane after lane moves on into the one left before it.
    """
    length = max(len(q.prompt) for q in questions)
    requests = {i: TokenRequest(prompt=q.prompt) for i, q in enumerate(questions)}
    requests |= {LANES + i: TokenRequest(prompt=q.prompt) for i, q in enumerate(questions)}
    rows = [length + REPLY + 8 * n for n in range(LANES + 1)]
    hand = Hand(
        f"recall_{kind}",
        rows,
        requests,
        ops=ops or HostileOps(),
        poisons=True,
        chunk=CHUNK,
        safeguards=safeguards,
    )
    for i in range(LANES):
        saved = length // 2 + 17 * i
        first = LANES + i  # prefilled in the free session, saved, given up, and restored elsewhere
        assert hand.start(first, LANES, cuts=[saved], capture=(i, saved)).failed == ()
        hand.end(first, LANES)
        assert hand.start(i, i, restore=(i, saved)).failed == ()
    everyone, free = list(range(LANES)), LANES
    hand.round(decode=everyone, steps=4)
    for i in reversed(everyone):
        position = len(questions[i].prompt) - 1 + len(hand.script.replies[i].tokens)
        hand.round(Move(i, hand.places[i], hand.places[free], position))
        after_move(hand, i, free)
        free = i
        hand.round(decode=[j for j in everyone if j != i and len(answer(hand, j)) < REPLY])
    while unfinished := [i for i in everyone if len(answer(hand, i)) < REPLY]:
        hand.round(decode=unfinished)
    return hand


def answer(hand: Hand, i: int) -> list[int]:
    return hand.script.replies[i].tokens


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_recalled_through_moves_pauses_and_restores(kind):
    questions = asked(kind, TOKENS)
    assert right(answered(kind, questions), questions) == [REPLY] * LANES


@pytest.mark.parametrize("kind", KINDS)
def test_the_scheduler_moves_and_pauses_streams_that_recall(kind):
    rows, _ = recall_in_a_crowd(kind, lanes=4, tokens=200, reply_tokens=16)
    assert [row.right_tokens for row in rows] == [16] * 4
    assert all(row.moves for row in rows)
    assert any(row.pauses for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_recalled_at_4096_tokens(kind):
    """The ring has wrapped: 700 tokens stand before its haystack."""
    questions = asked(kind, 4096, lead_tokens=700 if kind == "ring" else 0)
    assert all(len(q.prompt) >= 4096 for q in questions)
    assert right(answered(kind, questions), questions) == [REPLY] * LANES


def shift_rows(hand: Hand, source: int, target: int) -> None:
    """What a copy that is one row off leaves."""
    del source
    place = hand.places[target]
    for buffer in hand.arena.buffers:
        if isinstance(buffer, Rows | Ring):
            base = place.start_row if isinstance(buffer, Rows) else buffer.offsets[place.slot]
            rows = slice(base, base + TOKENS)
            buffer.k[:, rows] = mx.roll(buffer.k[:, rows], 1, axis=1)


def zero_state(hand: Hand, source: int, target: int) -> None:
    """What a copy that forgot the recurrent state leaves."""
    del source
    for buffer in hand.arena.buffers:
        if isinstance(buffer, Recurrent):
            buffer.open(hand.places[target])


def mix_lanes(hand: Hand, source: int, target: int) -> None:
    """What a copy out of another lane's session leaves: lane 0's, which moves last."""
    if source:
        hand.arena.move(hand.places[0], hand.places[target], TOKENS)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("kv", shift_rows),
        ("ring", shift_rows),
        ("state", zero_state),
        *((kind, mix_lanes) for kind in KINDS),
    ],
)
def test_a_move_gone_wrong_is_seen(kind, fault):
    questions = asked(kind, TOKENS)
    counts = right(answered(kind, questions, after_move=fault, ops=Ops()), questions)
    assert max(counts[1:]) < REPLY, "every lane moved, so every lane must have lost its way"


@pytest.mark.slow
def test_a_wrapped_ring_that_is_laid_out_anew_is_seen():
    """Rows keep their keys, but the mask believes others of them to have left the window."""
    questions = asked("ring", RING_WINDOW, lead_tokens=700)
    guards = Safeguards().without("raw_rings")
    counts = right(answered("ring", questions, safeguards=guards), questions)
    assert min(counts) < REPLY


def test_a_zeroed_state_means_nothing_to_attention():
    """The answer lives in rows alone, so losing the state loses nothing."""
    questions = asked("kv", TOKENS)
    counts = right(answered("kv", questions, after_move=zero_state, ops=Ops()), questions)
    assert counts == [REPLY] * LANES


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_files_are_what_the_script_builds(kind):
    folder = data_path("models", f"recall_{kind}")
    shipped = mx.load(str(folder / "model.safetensors"))
    _, made = build(kind)
    assert shipped.keys() == made.keys()
    for name, array in made.items():
        assert array.dtype == shipped[name].dtype
        assert bool(mx.array_equal(array, shipped[name]))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * 1024**2


def test_codes_are_distinct_and_far_apart():
    signs = codes()
    assert signs.shape == (VOCAB, 64)
    assert np.array_equal(signs.sum(axis=1), np.zeros(VOCAB))
    agree = signs @ signs.T
    np.fill_diagonal(agree, -64)
    assert agree.max() == 2 * 54 - 64


@pytest.mark.parametrize("kind", KINDS)
def test_a_haystack_holds_distinct_tokens_and_one_question(kind):
    q = question(kind, 4096, np.random.default_rng(0), depth=0.9, lead_tokens=100)
    assert len(set(q.prompt[:-1])) == 4195
    assert q.prompt.count(q.prompt[-1]) == 2
    assert abs(q.prompt.index(q.prompt[-1]) - 100 - 0.9 * 4096) < 70
