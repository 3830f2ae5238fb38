"""Steps issued ahead and parts of a step compiled: the same promise, the same facts."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.clients import ScriptedClients
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.sampling import Sampling
from qwisp.scheduling.contract import Admit, Grant, Outcome

from .hand import Hand
from .runs import prompts, run, sized

pytestmark = pytest.mark.mlx

LENGTHS, MAX_NEW = [70, 5, 64], {0: 20, 1: 24, 2: 12}


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("hybrid_moe", "gemma3"))],
)
def test_compiled_and_issued_ahead_equals_compiled_solo(name):
    requests = prompts(LENGTHS, seed=4)
    both = run(name, requests, MAX_NEW, layout=sized([256, 84, 84]), is_compiled=True, ahead=1)
    assert both.executor.context.compiled  # it was traced
    assert both.executor.identity.label.endswith("strict compiled")
    for i in requests:
        alone = run(name, {i: requests[i]}, {i: MAX_NEW[i]}, layout=sized([256]), is_compiled=True)
        assert np.array_equal(both.replies[i].logits, alone.replies[i].logits)
        assert both.replies[i].tokens == alone.replies[i].tokens


def test_a_repeated_round_is_issued_ahead_of_its_results(monkeypatch):
    """Step n + 1 is issued before step n is read, and never more than one ahead."""
    order = []
    issue, read = MlxExecutor._issue, MlxExecutor._read
    monkeypatch.setattr(MlxExecutor, "_issue", lambda *a: (order.append("issue"), issue(*a))[1])
    monkeypatch.setattr(MlxExecutor, "_read", lambda *a: (order.append("read"), read(*a))[1])
    r = run("llama", prompts([5]), {0: 10}, layout=sized([84]), ahead=1)
    assert len(r.replies[0].tokens) == 10
    ahead = np.cumsum([1 if what == "issue" else -1 for what in order])
    assert ahead.max() == 2
    assert ahead[-1] == 0
    order.clear()
    run("llama", prompts([5]), {0: 10}, layout=sized([84]), ahead=0)
    assert order == ["issue", "read"] * 10


# ---- what is counted -----------------------------------------------------------------------------


def stopping(hand: Hand, at: dict[int, int]) -> None:
    """Let each reply end by itself at a token that it says first at that step."""
    free = Hand("llama", [100] * len(at), dict(hand.requests))
    for i in at:
        free.start(i, i)
    free.round(decode=list(at), steps=20)
    for i, step in at.items():
        said = free.script.replies[i].tokens
        assert said[step] not in said[:step]
        hand.requests[i] = replace(hand.requests[i], stop_tokens=frozenset([said[step]]))
    hand.script._requests = hand.requests


@pytest.mark.parametrize(
    ("ahead", "at", "outcome"),
    [
        (0, {0: 3, 1: 5, 2: 9}, Outcome(4, (), (0,))),
        (1, {0: 3, 1: 5, 2: 9}, Outcome(5, ((0, 4),), (0,))),
        (1, {0: 3, 1: 4, 2: 9}, Outcome(5, ((0, 4),), (0, 1))),  # 1 stops in the step between
        (1, {0: 3, 1: 3, 2: 9}, Outcome(5, ((0, 4), (1, 4)), (0, 1))),
        (1, {0: 9, 1: 7, 2: 0}, Outcome(2, ((2, 1),), (2,))),
        (1, {0: 9, 1: 11, 2: 11}, Outcome(10, (), (0,))),  # in the last step of ten: nothing ran on
        (0, {0: 9, 1: 11, 2: 11}, Outcome(10, (), (0,))),
        (1, {0: 11, 1: 8, 2: 11}, Outcome(10, ((1, 9),), (1,))),
        (1, {0: 10, 1: 11, 2: 12}, Outcome(10)),
    ],
)
def test_stops_and_tokens_are_counted_as_they_came(ahead, at, outcome):
    hand = Hand("llama", [100] * 3, prompts([9, 30, 12], seed=11), ahead=ahead)
    stopping(hand, at)
    for i in at:
        hand.start(i, i)
    assert hand.round(decode=[0, 1, 2], steps=10) == outcome
    produced = dict(outcome.produced)
    for i in at:
        assert len(hand.script.replies[i].tokens) == produced.get(i, outcome.rounds)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_ends_where_its_clients_say(ahead, monkeypatch):
    hand = Hand("llama", [100, 400], prompts([9, 330], seed=3), ahead=ahead)
    hand.start(0, 0)
    monkeypatch.setattr(ScriptedClients, "rounds_free", lambda self, round: 3)
    assert hand.round(decode=[0], steps=9) == Outcome(3)
    assert hand.round(decode=[0], steps=2) == Outcome(2)
    assert len(hand.script.replies[0].tokens) == 5


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_repeated_grant_reads_on_where_it_was(ahead):
    """Four repeats of a window each, beside a decoder, are what one grant of all is alone."""
    asked = prompts([9, 64 * 4 + 1], seed=3)
    hand = Hand("hybrid", [100, 400], asked, ahead=ahead)
    hand.start(0, 0)
    hand.executor._admit(hand_admit(hand, 1, 1))
    outcome = hand.round(Grant(1, 0, 64, 1, False), decode=[0], steps=4)
    assert outcome == Outcome(4)
    assert len(hand.script.replies[0].tokens) == 4
    hand.round(decode=[0, 1], steps=3)
    alone = Hand("hybrid", [100, 400], asked)
    alone.start(1, 1)
    alone.round(decode=[1], steps=3)
    assert np.array_equal(hand.logits(1), alone.logits(1))
    assert hand.script.replies[1].tokens == alone.script.replies[1].tokens


def hand_admit(hand: Hand, request_id: int, place: int) -> Admit:
    return Admit(request_id, hand.places[place], len(hand.requests[request_id].prompt))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_draw_is_keyed_by_its_requests_seed_and_its_position(ahead):
    """The token at position p is the largest of logits / temperature + noise of key (seed, p)."""
    asked = {
        i: replace(r, sampling=Sampling(temperature=(0.7, 0.0, 3.0)[i], seed=(5, 9, 2**32 - 1)[i]))
        for i, r in prompts([9, 30, 12], seed=11).items()
    }
    hand = Hand("llama", [100] * 3, asked, ahead=ahead)
    for i in asked:
        hand.start(i, i)
    hand.round(decode=[0, 1, 2], steps=6)
    for i, request in asked.items():
        rule, reply = request.sampling, hand.script.replies[i]
        greedy = []
        for step, words in enumerate(reply.logits):
            logits = words.view(np.float32)
            position = len(request.prompt) + step
            uniform = mx.random.uniform(
                shape=logits.shape, key=mx.array([rule.seed, position], mx.uint32)
            )
            noise = -np.log(-np.log(np.float64(np.array(uniform))))
            greedy.append(int(logits.argmax()))
            if rule.temperature:
                want = int((logits / rule.temperature + noise).argmax())
            else:
                want = greedy[-1]
            assert reply.tokens[step] == want
        assert (reply.tokens == greedy) == (i == 1)
