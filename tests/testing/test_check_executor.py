"""A correct engine passes the check; each way of breaking the contract is caught and named."""

from __future__ import annotations

import pytest

from qwisp.errors import CheckFailed
from qwisp.scheduling.contract import Admit, Fact, Grant, Move, Outcome, Pause, Place, Resume, Round
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.settings import Settings
from qwisp.testing import (
    Report,
    RowBytes,
    ScriptedRequest,
    ToyEngine,
    check_executor,
    sessions,
)
from qwisp.testing.check import EXERCISED
from qwisp.testing.contract_watch import ContractWatch

SETTINGS = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8)
LAYOUT = sessions(16, 16, 24, 64, margin_rows=3)
NUM_ROWS = 16 + 16 + 24 + 64 + 4 * 3


def check(engine: type[ToyEngine], settings: Settings = SETTINGS, **engine_options) -> Report:
    return check_executor(
        lambda requests: engine(requests, NUM_ROWS, **engine_options),
        layout=LAYOUT,
        settings=settings,
        replies=lambda executor: executor.replies,
    )


def test_a_correct_engine_passes_and_every_operation_was_seen() -> None:
    report = check(ToyEngine).require()
    assert report.findings == ()
    assert report.not_seen == ()
    assert report.num_rounds > report.num_calls > 20


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_drafts_and_late_stops_are_within_the_contract(reads_late: bool, tokens: int) -> None:
    settings = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8, step_tokens=3)
    report = check(ToyEngine, settings, yields=lambda _: tokens, reads_late=reads_late)
    assert report.findings == ()


@pytest.mark.parametrize("text", ["whole_window:2", "fixed_arena:40", "per_request:120", "30x2"])
def test_the_check_runs_on_every_kind_of_layout(text: str) -> None:
    layout: Layout = parse_layout(text, size=RowBytes(), memory_bytes=200, model_context_tokens=64)
    report = check_executor(
        lambda requests: ToyEngine(requests, 400),
        layout=layout,
        settings=SETTINGS,
        replies=lambda executor: executor.replies,
    )
    assert report.findings == ()
    assert set(report.not_seen) <= {"Move", "Pause", "Resume"}
    assert set(EXERCISED) >= set(report.not_seen)


class Forgets(ToyEngine):
    """Its cache is not looked at: what is wrong shows in the tokens alone."""

    def _check(self, lane, num_rows: int) -> None:
        pass


class MovesNothing(Forgets):
    def move(self, op: Move | Resume) -> None:
        self.lanes[op.id].place = op.target


class MovesOneRowTooFew(Forgets):
    def move(self, op: Move | Resume) -> None:
        super().move(op._replace(num_rows=op.num_rows - 1))


class MovesButStays(Forgets):
    def move(self, op: Move | Resume) -> None:
        place = self.lanes[op.id].place
        super().move(op)
        self.lanes[op.id].place = place


class GrantsTheSameAgain(Forgets):
    def _grant_again(self, round: Round, times: int) -> None:
        super()._grant_again(round, 0)


class GrantsTooLittle(Forgets):
    def grant(self, op: Grant) -> None:
        super().grant(op._replace(num_tokens=op.num_tokens - 1))


class OperatesBackwards(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round._replace(ops=tuple(reversed(round.ops))))


class AdmitsElsewhere(Forgets):
    def admit(self, op: Admit) -> None:
        super().admit(op._replace(place=op.place._replace(start_row=0)))


class DecodesThePaused(ToyEngine):
    paused: set[int]

    def run(self, round: Round) -> Outcome:
        paused = self.__dict__.setdefault("paused", set())
        paused |= {op.id for op in round.ops if isinstance(op, Pause)}
        paused -= {op.id for op in round.ops if not isinstance(op, Pause)}
        outcome = super().run(round)
        for request_id in paused:
            self.replies[request_id].append(0)
        return outcome


class RunsTooOften(ToyEngine):
    def run(self, round: Round) -> Outcome:
        outcome = super().run(round)
        return outcome._replace(rounds=round.repeat + 1)


class RunsNever(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(rounds=0)


class CountsTooMany(ToyEngine):
    def run(self, round: Round) -> Outcome:
        outcome = super().run(round)
        return outcome._replace(produced=tuple((i, outcome.rounds + 1) for i in round.decode))


class CountsTwice(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(produced=tuple((i, 1) for i in round.decode * 2))


class CountsStrangers(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(produced=((77, 1),))


class ForgetsToCount(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(produced=())


class StopsStrangers(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(stopped=(77,))


class StopsTwice(ToyEngine):
    def run(self, round: Round) -> Outcome:
        outcome = super().run(round)
        return outcome._replace(stopped=outcome.stopped * 2)


class StopsTheEnded(ToyEngine):
    def run(self, round: Round) -> Outcome:
        outcome = super().run(round)
        return outcome._replace(stopped=(*outcome.stopped, *self.ends))


class NeverStops(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(stopped=())


class FailsAMove(ToyEngine):
    def run(self, round: Round) -> Outcome:
        kinds = [type(op) for op in round.ops]
        outcome = super().run(round)
        failed = ((kinds.index(Move), "no memory"),) if Move in kinds else ()
        return outcome._replace(failed=failed)


class FailsBeyond(ToyEngine):
    def run(self, round: Round) -> Outcome:
        return super().run(round)._replace(failed=((99, "no memory"),))


class TellsFactsTwice(ToyEngine):
    def facts(self, round_index: int) -> list[Fact]:
        return super().facts(round_index) * 2


class TellsTheFuture(ToyEngine):
    def facts(self, round_index: int) -> list[Fact]:
        return [f._replace(round=round_index + 5) for f in super().facts(round_index)]


class TellsBackwards(ToyEngine):
    def facts(self, round_index: int) -> list[Fact]:
        return [f._replace(round=-f.round) for f in super().facts(round_index)]


class LosesARequest(ToyEngine):
    def facts(self, round_index: int) -> list[Fact]:
        return [f for f in super().facts(round_index) if not f.ask or f.ask.id != 2]


class ChangesAnAsk(ToyEngine):
    def facts(self, round_index: int) -> list[Fact]:
        found = super().facts(round_index)
        return [f._replace(ask=f.ask._replace(max_new=2)) if f.ask else f for f in found]


class IgnoresArrivals(ToyEngine):
    """Runs all repeats, whatever comes."""

    def run(self, round: Round) -> Outcome:
        self._script.rounds_free = lambda round: round.repeat
        return super().run(round)


class WaitsForever(ToyEngine):
    def wait(self) -> bool:
        super().wait()
        return True


class GivesUpWaiting(ToyEngine):
    def wait(self) -> bool:
        return False


class Raises(ToyEngine):
    def run(self, round: Round) -> Outcome:
        if round.index > 3:
            raise RuntimeError("device lost")
        return super().run(round)


class ClosesBadly(ToyEngine):
    def close(self) -> None:
        self.lanes = self.lanes.copy()
        raise OSError("still busy")


class ClosesOnce(ToyEngine):
    def close(self) -> None:
        del self.lanes


@pytest.mark.parametrize(
    ("engine", "rule", "what"),
    [
        (MovesNothing, "replies", "step by step|alone"),
        (MovesOneRowTooFew, "replies", "alone it is"),
        (MovesButStays, "run", "RowsLost: request 1 has 16 tokens"),
        (GrantsTheSameAgain, "replies", "alone|step by step"),
        (GrantsTooLittle, "replies", "alone|step by step"),
        (OperatesBackwards, "run", "raises"),
        (AdmitsElsewhere, "replies", "alone it is"),
        (DecodesThePaused, "progress", "request 1 yields no tokens any more"),
        (RunsTooOften, "rounds", "ran where 1 to"),
        (RunsNever, "rounds", "0 ran where 1 to"),
        (CountsTooMany, "produced", "at most"),
        (CountsTwice, "produced", "is listed twice"),
        (CountsStrangers, "produced", "request 77 was not to decode"),
        (StopsStrangers, "stopped", "request 77 was not decoding"),
        (StopsTwice, "stopped", "is listed twice"),
        (StopsTheEnded, "stopped", "is over already"),
        (NeverStops, "progress", "yields no tokens any more"),
        (FailsAMove, "failed", "Move of request [0-9]+: no memory"),
        (FailsBeyond, "failed", "position 99 is none of the round"),
        (TellsFactsTwice, "facts", "arrives twice"),
        (TellsTheFuture, "facts", "is of round 5, asked up to 0"),
        (TellsBackwards, "facts", "comes after"),
        (LosesARequest, "facts", "request 2 never arrives"),
        (ChangesAnAsk, "facts", "but its client asked"),
        (IgnoresArrivals, "wakes", "did not end the run"),
        (WaitsForever, "wait", "nothing did"),
        (GivesUpWaiting, "facts", "never arrives"),
        (Raises, "run", "RuntimeError: device lost"),
        (ClosesBadly, "close", "closed once it raises OSError: still busy"),
        (ClosesOnce, "close", "closed twice it raises AttributeError"),
    ],
)
def test_each_breach_is_caught_and_named(engine: type[ToyEngine], rule: str, what: str) -> None:
    report = check(engine)
    with pytest.raises(CheckFailed, match=what):
        report.require()
    assert rule in {finding.rule for finding in report.findings}


def test_tokens_that_nobody_counted_are_found() -> None:
    settings = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8, step_tokens=3)
    report = check(ForgetsToCount, settings, yields=lambda _: 2)
    assert {finding.rule for finding in report.findings} & {"produced", "run"}


def test_without_replies_the_report_still_counts_but_cannot_see_the_rows() -> None:
    report = check_executor(
        lambda requests: MovesNothing(requests, NUM_ROWS), layout=LAYOUT, settings=SETTINGS
    )
    assert report.findings == ()


@pytest.mark.parametrize(("at", "is_late"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_run_ends_before_the_round_of_an_arrival(at: int, is_late: bool) -> None:
    class Runs(ToyEngine):
        def facts(self, round_index: int) -> list[Fact]:
            return [Fact(at, ask=request.ask)] if round_index else []

        def run(self, round: Round) -> Outcome:
            return Outcome(round.repeat)

    request = ScriptedRequest(1, 5, 5)
    watch = ContractWatch(Runs([], 1), [request], 1)
    watch.run(Round(0, (), (), 4, True))
    watch.facts(4)
    assert [finding.rule for finding in watch.findings] == ["wakes"] * is_late


def test_a_stream_that_slides_onto_its_own_rows_keeps_them() -> None:
    engine = ToyEngine([ScriptedRequest(1, 8, 5)], 16)
    source, target = Place(0, 4, 8, 8), Place(0, 2, 8, 8)
    engine.admit(Admit(1, source, 8))
    engine.grant(Grant(1, 0, 7, 1, True))
    written = engine.rows[4:11]
    engine.move(Move(1, source, target, 7))
    assert engine.rows[2:9] == written
    assert engine.rows[10:12] == [-1, -1]  # left behind, and wiped
