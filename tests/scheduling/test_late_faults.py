"""What fails in a later repeat of a round: told with that repeat, as if it had been asked alone."""

from __future__ import annotations

import pytest

from qwisp.facts.record import Recorded, write_run
from qwisp.facts.replay import replay_facts
from qwisp.scheduling.contract import Grant, LogEntry, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty, Stepwise
from qwisp.testing import RowBytes, ScriptedRequest, ToyEngine, solo_reply

SETTINGS = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8, step_tokens=2)
LAYOUT = parse_layout(
    "96x3", size=RowBytes(), memory_bytes=1, model_context_tokens=96, own_context_tokens=96
)
ASKS = [
    ScriptedRequest(0, 3, 60, max_new=60),
    ScriptedRequest(1, 2, 30),
    ScriptedRequest(2, 60, 12, arrives=2),  # six repeats of its grant
]


class Played:
    """One run; `round` is the one that was failed, `outcome` what was told of it."""

    def __init__(self, wrap, *, stepwise: bool = False, drafts: int = 1) -> None:
        space = RowSpace(LAYOUT, RowBytes())
        self.engine = ToyEngine(ASKS, space.num_rows, yields=lambda i: drafts if i == 0 else 1)
        self.outcomes: list[tuple[Round, Outcome]] = []
        outer = wrap(self.engine)
        self.recorded = Recorded(Stepwise(outer) if stepwise else outer)
        self.scheduler = Scheduler(space, SETTINGS)
        run = self.recorded.run

        def kept(round: Round) -> Outcome:
            self.outcomes.append((round, run(round)))
            return self.outcomes[-1][1]

        self.recorded.run = kept
        drive(self.scheduler, self.recorded)
        self.scheduler.check()

    @property
    def log(self) -> list[LogEntry]:
        return self.scheduler.log


def first_repeated(kind: str):
    """Return `fails`: a grant, or the first or last decode of a round with or without one."""
    done: list[int] = []

    def fails(round: Round) -> list[int]:
        grants = [n for n, op in enumerate(round.ops) if isinstance(op, Grant)]
        if round.repeat < 5 or done or round.index < 3 or bool(grants) != (kind[0] == "G"):
            return []  # before round 3 an arrival ends the run
        done.append(round.index)
        if kind == "Grant":
            return grants
        return [len(round.ops) + (len(round.decode) - 1 if "last" in kind else 0)]

    return fails


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("kind", ["Grant", "Grant, first", "Grant, last", "first", "last"])
@pytest.mark.parametrize("repeat", [0, 1, 2, 4])
def test_a_failure_in_a_later_repeat_is_told_as_if_every_round_were_asked(
    kind: str, repeat: int, drafts: int, tmp_path
) -> None:
    played = Played(lambda e: Faulty(e, first_repeated(kind), repeat=repeat), drafts=drafts)
    ((round, outcome),) = [pair for pair in played.outcomes if pair[1].failed]
    assert outcome.rounds == repeat + 1
    ((position, reason),) = outcome.failed
    assert reason == "injected failure"
    index = round.index + repeat

    def the_same_round(asked: Round) -> list[int]:
        return [position] if asked.index == index else []

    single = Played(lambda e: Faulty(e, the_same_round), stepwise=True, drafts=drafts)
    assert played.log == single.log
    assert played.engine.replies == single.engine.replies
    for request in ASKS:
        reply = played.engine.replies[request.id]
        assert reply == solo_reply(request, len(reply)), "a stream noticed"
    assert played.scheduler.counts["failed"] == 1
    failed = next(entry for entry in played.log if entry.kind == "failed")
    assert failed.round == index
    write_run(tmp_path / "facts.jsonl", played.recorded, played.scheduler)
    replay_facts(tmp_path / "facts.jsonl").require_equal(played.log)


def test_nothing_fails_in_a_repeat_that_never_comes() -> None:
    sound = Played(lambda e: e)
    late = Played(lambda e: Faulty(e, lambda r: range(len(r.ops) + len(r.decode)), repeat=10**6))
    assert late.log == sound.log


def test_an_arrival_before_the_failing_repeat_is_looked_at_first() -> None:
    """A wrapper that ran on would let a newcomer wait for a round that could have known it."""
    played = Played(lambda e: Faulty(e, lambda r: [len(r.ops)] if r.decode else [], repeat=2))
    arrived = next(entry for entry in played.log if entry.kind == "arrive" and entry.id == 2)
    admitted = next(entry for entry in played.log if entry.kind == "admit" and entry.id == 2)
    assert arrived.round == admitted.round == 2
