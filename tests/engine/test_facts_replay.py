"""What the engine's scheduler decided follows from the recorded facts alone."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest

from qwisp.engine.clients import TokenRequest
from qwisp.errors import BadInput
from qwisp.facts.file import (
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactRecord,
    FailRecord,
    StopRecord,
)
from qwisp.facts.record import facts_of
from qwisp.scheduling.contract import Executor, Grant, Move, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty

from .runs import CHUNK, Ran, prompts, replayed, run, sized

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
    # TokenRequest 1 stops at a token it really says, well before its maximum.
    tokens = plain.replies[1].tokens
    stop = next(token for n, token in enumerate(tokens) if n > 28 and token not in tokens[:n])
    requests[1] = TokenRequest(prompt=requests[1].prompt, stop_tokens=frozenset([stop]))
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


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_run_holds_every_kind_of_event(ahead):
    r = ran(ahead)
    kinds = Counter(type(op).__name__ for round in r.rounds for op in round.ops)
    assert kinds["Move"] >= 1
    assert kinds["Pause"] >= 1
    assert kinds["Resume"] >= 1
    facts = Counter(type(record) for record in facts_of(r.recorded))
    assert facts == {
        AskRecord: len(LENGTHS),
        CancelRecord: 1,
        StopRecord: 1,
        FailRecord: 1,
        **({ExtraRecord: 1} if ahead else {}),
    }
    assert len(r.replies[1].tokens) < MAX_NEW[1]
    assert r.scheduler.counts["submitted"] == len(LENGTHS)
    assert max(round.repeat for round in r.rounds) > 1


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("stepwise", [False, True])
def test_facts_replay_to_the_same_log_through_the_simulator(ahead, stepwise):
    r = ran(ahead)
    assert replayed(r, stepwise=stepwise) == r.scheduler.log


def test_a_stop_found_by_a_step_issued_ahead_is_one_round_late_and_adds_no_token():
    exact, ahead = ran(0), ran(1)
    (stop,) = (record for record in exact.recorded.records if isinstance(record, StopRecord))
    late = stop.round + 1
    assert ExtraRecord(late, 0, 1, -1) in ahead.recorded.records
    assert StopRecord(late, 0, 1) in ahead.recorded.records
    assert ahead.replies[1].tokens == exact.replies[1].tokens


def changed(records: tuple[FactRecord, ...], kind: str) -> list[FactRecord]:
    """The facts with one changed, by name: `ask later`, `extra forgotten`."""
    name, _, change = kind.partition(" ")
    record = next(r for r in records if type(r) is KINDS[name] and r.round > 0)
    others = [r for r in records if r is not record]
    if change == "forgotten":
        return others
    how = {
        "later": {"round": record.round + 1},
        "earlier": {"round": record.round - 1},
        "longer": {"prompt_tokens": 95},
        "of another reason": {"reason": "another"},
    }
    return sorted([*others, record._replace(**how[change])], key=lambda r: r.round)


KINDS = {
    "ask": AskRecord,
    "cancel": CancelRecord,
    "stop": StopRecord,
    "fail": FailRecord,
    "extra": ExtraRecord,
}


@pytest.mark.parametrize(
    "kind",
    [
        "ask later",
        "ask longer",
        "cancel later",
        "stop earlier",
        "fail of another reason",
        "fail forgotten",
        "extra forgotten",
    ],
)
def test_a_changed_fact_breaks_the_equality(kind):
    r = ran(1)
    try:
        log = replayed(r, changed(facts_of(r.recorded), kind))
    except BadInput as error:
        log = error.what
    assert log != r.scheduler.log


def test_moves_keep_their_rows():
    moves = [op for round in ran(0).rounds for op in round.ops if isinstance(op, Move)]
    assert all(op.num_rows <= op.source.num_rows <= op.target.num_rows for op in moves)
