"""What the engine's scheduler decided follows from the recorded facts alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest

from qwisp.engine.clients import Request
from qwisp.engine.tiny import tiny_config
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Executor, Grant, Move, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty
from qwisp.spec.model import ModelSpec

from .replaying import Facts, replay
from .runs import CHUNK, Ran, prompts, run, sized

pytestmark = pytest.mark.mlx

LAYOUT = sized([400, 400, 200, 100, 60, 60])
SETTINGS = Settings(grow_tokens=16, chunk_tokens=CHUNK, budget_tokens=128)
LENGTHS = [150, 40, 35, 30, 90, 20, 30]
MAX_NEW = {0: 120, 1: 300, 2: 70, 3: 150, 4: 60, 5: 200, 6: 20}
ARRIVALS = {3: 4, 4: 9, 5: 11, 6: 60}
CANCELS = {5: 30}


def fail_the_grant_of_request_6(inner: Executor) -> Executor:
    def fails(round: Round) -> list[int]:
        return [n for n, op in enumerate(round.ops) if isinstance(op, Grant) and op.id == 6]

    return Faulty(inner, fails)


def the_run(ahead: int) -> Ran:
    requests = prompts(LENGTHS, seed=3)
    plain = run("hybrid", requests, MAX_NEW, layout=LAYOUT, arrivals=ARRIVALS, cancels=CANCELS)
    # Request 1 stops at a token it really says, well before its maximum.
    tokens = plain.replies[1].tokens
    stop = next(token for n, token in enumerate(tokens) if n > 28 and token not in tokens[:n])
    requests[1] = Request(prompt=requests[1].prompt, stop_tokens=frozenset([stop]))
    return run(
        "hybrid",
        requests,
        MAX_NEW,
        layout=LAYOUT,
        arrivals=ARRIVALS,
        cancels=CANCELS,
        wrap=fail_the_grant_of_request_6,
        ahead=ahead,
    )


ran = lru_cache(the_run)


def size() -> SessionBytes:
    return SessionBytes(ModelSpec.from_config(tiny_config("hybrid")), None, CHUNK)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_run_holds_every_kind_of_event(ahead):
    r = ran(ahead)
    kinds = Counter(type(op).__name__ for round in r.rounds for op in round.ops)
    assert kinds["Move"] >= 1
    assert kinds["Pause"] >= 1
    assert kinds["Resume"] >= 1
    assert len(r.recorded.stops) == 1
    assert len(r.recorded.fails) == 1
    assert sum(fact.cancel is not None for _, fact in r.recorded.facts_seen) == 1
    assert len(r.replies[1].tokens) < MAX_NEW[1]
    assert r.scheduler.counts["submitted"] == len(LENGTHS)
    assert max(round.repeat for round in r.rounds) > 1


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("stepwise", [False, True])
def test_facts_replay_to_the_same_log_through_the_simulator(ahead, stepwise):
    r = ran(ahead)
    log = replay(Facts.of(r.recorded), LAYOUT, size(), SETTINGS, stepwise=stepwise)
    assert log == r.scheduler.log


def test_a_stop_found_by_a_step_issued_ahead_is_one_round_late_and_adds_no_token():
    exact, ahead = ran(0), ran(1)
    assert ahead.recorded.extras == [(ahead.recorded.stops[0][0], 0.0, 1, -1)]
    assert ahead.recorded.stops[0][0] == exact.recorded.stops[0][0] + 1
    assert ahead.replies[1].tokens == exact.replies[1].tokens


def _moved_later(facts: Facts, n: int) -> Facts:
    changed = list(facts.facts)
    changed[n] = changed[n]._replace(round=changed[n].round + 1)
    return replace(facts, facts=tuple(changed))


def mutations(facts: Facts) -> dict[str, Facts]:
    ask = next(n for n, fact in enumerate(facts.facts) if fact.ask and fact.round > 0)
    cancel = next(n for n, fact in enumerate(facts.facts) if fact.cancel is not None)
    longer = list(facts.facts)
    longer[ask] = longer[ask]._replace(ask=longer[ask].ask._replace(prompt_tokens=95))
    (stop, who), (failed, at, why) = facts.stops[0], facts.fails[0]
    return {
        "ask later": _moved_later(facts, ask),
        "ask longer": replace(facts, facts=tuple(longer)),
        "cancel later": _moved_later(facts, cancel),
        "stop earlier": replace(facts, stops=((stop - 1, who),)),
        "failure of another reason": replace(facts, fails=((failed, at, f"not {why}"),)),
        "failure forgotten": replace(facts, fails=()),
        "extra forgotten": replace(facts, extras=()),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "ask later",
        "ask longer",
        "cancel later",
        "stop earlier",
        "failure of another reason",
        "failure forgotten",
        "extra forgotten",
    ],
)
def test_a_mutated_fact_breaks_the_equality(kind):
    r = ran(1)
    log = replay(mutations(Facts.of(r.recorded))[kind], LAYOUT, size(), SETTINGS)
    assert log != r.scheduler.log


def test_moves_keep_their_rows():
    moves = [op for round in ran(0).rounds for op in round.ops if isinstance(op, Move)]
    assert all(op.num_rows <= op.source.num_rows <= op.target.num_rows for op in moves)
