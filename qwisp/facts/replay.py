"""Replay the facts of a real run through a fresh scheduler, and say whether it decides the same."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwisp.cost import CostModel
from qwisp.errors import BadInput, CheckFailed
from qwisp.facts.file import (
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactRecord,
    FactsHeader,
    FailRecord,
    StopRecord,
    read_facts,
)
from qwisp.facts.header import log_digest, recorded_layout, recorded_settings
from qwisp.policies import scheduler_for
from qwisp.scheduling.contract import Ask, End, Executor, Fact, LogEntry, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Stepwise, named, run_without
from qwisp.sim.cost_executor import CostExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsReplay:
    """What a fresh scheduler decided on recorded facts.

    `recorded_sha256` is the digest of the run's own log where its header has one. `clock` holds
    estimated times of the same rounds where a cost model was given.
    """

    header: FactsHeader
    records: tuple[FactRecord, ...]
    scheduler: Scheduler
    log: tuple[LogEntry, ...]
    log_sha256: str
    recorded_sha256: str | None
    clock: CostExecutor | None

    @property
    def equal(self) -> bool | None:
        """Whether the decisions equal the recorded ones; None when the file does not say."""
        return None if self.recorded_sha256 is None else self.recorded_sha256 == self.log_sha256

    def require_equal(self, log: Sequence[LogEntry] | None = None) -> None:
        """Raise `CheckFailed` unless the log equals `log`, or the digest in the header.

        Raises `BadInput` when there is nothing to compare with.
        """
        if log is not None:
            where = log_difference(self.log, log)
            if where is not None:
                raise CheckFailed(
                    f"the replay decides differently: {where}",
                    "compare settings and versions of both runs",
                )
        elif self.equal is None:
            raise BadInput(
                "the facts name no log to compare with", "write log_sha256 into their header"
            )
        elif not self.equal:
            raise CheckFailed(
                f"the replay's log has digest {self.log_sha256[:16]}, the run's"
                f" {self.recorded_sha256[:16]}",
                "a fact was changed, or the settings or versions of the two runs differ",
            )


def replay_facts(
    facts: str | Path | tuple[FactsHeader, Sequence[FactRecord]],
    *,
    size: SessionSize | None = None,
    cost: CostModel | None = None,
) -> FactsReplay:
    """Return the decisions of a fresh scheduler on the facts of a file, or of header and records.

    `size` is needed only where bytes decide (`per_request`) and the header does not tell them;
    with `cost` the rounds also get estimated times. Raises `BadInput` when the facts cannot belong
    to a run under these settings, `BadTrace` when the file cannot be read, `NotCalibrated`.
    """
    header, records = read_facts(facts) if isinstance(facts, str | Path) else facts
    layout, size = recorded_layout(header, size)
    settings = recorded_settings(header)
    clock = CostExecutor([], cost.require(), size) if cost is not None else None
    scheduler = replay_records(records, layout, size, settings, clock=clock)
    log = tuple(scheduler.log)
    return FactsReplay(
        header=header,
        records=tuple(records),
        scheduler=scheduler,
        log=log,
        log_sha256=log_digest(log),
        recorded_sha256=header.told("log_sha256", kind=str),
        clock=clock,
    )


def replay_records(
    records: Iterable[FactRecord],
    layout: Layout,
    size: SessionSize,
    settings: Settings,
    *,
    clock: CostExecutor | None = None,
    stepwise: bool = False,
) -> Scheduler:
    """Return a fresh scheduler after the facts of a run in these sessions, for its log.

    `clock` (without arrivals) goes along and says how long the cost model takes for the same
    rounds; `stepwise` asks for every round. Raises `BadInput` as `replay_facts` does.
    """
    scheduler = scheduler_for(layout, size, settings)
    executor: Executor = FactsExecutor(records, step_tokens=settings.step_tokens, clock=clock)
    drive(scheduler, Stepwise(executor) if stepwise else executor)
    return scheduler


def log_difference(log: Sequence[LogEntry], other: Sequence[LogEntry]) -> str | None:
    """Return the first place where two logs differ, in words, or None when they are equal.

    >>> entry = LogEntry(3, 1, "admit", 7, (0, 0, ""))
    >>> log_difference([entry], [entry._replace(round=4)])
    "entry 0: (3, 1, 'admit', 7, (0, 0, '')) against (4, 1, 'admit', 7, (0, 0, ''))"
    """
    for number, (one, two) in enumerate(zip(log, other, strict=False)):
        if one != two:
            return f"entry {number}: {tuple(one)} against {tuple(two)}"
    if len(log) != len(other):
        return f"{len(log)} entries against {len(other)}"
    return None


class FactsExecutor:
    """Plays `records` (by round) back to a scheduler whose decode steps add up to `step_tokens`.

    It decides and computes nothing; a repeated round ends where the next fact lies. Raises
    `BadInput` where the facts cannot belong to the rounds planned: then they were changed, or the
    two schedulers decided differently.
    """

    def __init__(
        self,
        records: Iterable[FactRecord],
        *,
        step_tokens: int = 1,
        clock: CostExecutor | None = None,
    ) -> None:
        self._step_tokens = step_tokens
        self._clock = clock
        self._facts: list[Fact] = []
        self._next = 0
        self._at: dict[int, list[FactRecord]] = defaultdict(list)
        for record in records:
            if isinstance(record, AskRecord):
                self._facts.append(Fact(record.round, ask=Ask(*record[2:])))
            elif isinstance(record, CancelRecord):
                self._facts.append(Fact(record.round, cancel=record.id))
            else:
                self._at[record.round].append(record)
        self._cancel_rounds = [fact.round for fact in self._facts if fact.cancel is not None]
        self._last_rounds = sorted(self._at)  # a run of rounds ends where one of these lies
        self._fail_rounds = sorted(
            index
            for index, found in self._at.items()
            if any(isinstance(record, FailRecord) for record in found)
        )
        self._yielded: dict[int, tuple[int, int]] = {}  # by id: rounds decoded, tokens beyond
        self._before: tuple[int, ...] = ()

    # ---- the four methods --------------------------------------------------------------------

    def facts(self, round_index: int) -> list[Fact]:
        """Return the arrivals and cancels up to this round, each once."""
        found: list[Fact] = []
        while self._next < len(self._facts) and self._facts[self._next].round <= round_index:
            fact = self._facts[self._next]
            self._next += 1
            found.append(fact)
            if fact.ask is not None and self._clock is not None:
                self._clock.expect(fact.ask)
        return found

    def run(self, round: Round) -> Outcome:
        """Answer with what happened in the round, or in as many repeats as nothing happened in."""
        count = self._count(round)
        found = self._at.pop(round.index + count - 1, [])
        fails = [r for r in found if isinstance(r, FailRecord)]
        failed = tuple(sorted((_position(round, r), r.reason) for r in fails))
        stopped = tuple(r.id for r in found if isinstance(r, StopRecord))
        extras = [(r.id, r.tokens) for r in found if isinstance(r, ExtraRecord)]
        self._check(round, count, stopped, extras)
        if self._clock is not None:
            run_without(self._clock, round, list(failed), count)
            for request_id, tokens in extras:
                self._clock.yield_more(request_id, tokens)
        self._before = round.decode
        produced = tuple((request_id, count + tokens) for request_id, tokens in extras)
        return Outcome(count, produced, stopped, failed)

    def wait(self) -> bool:
        """Return False: recorded rounds do not wait. Raises `BadInput` when facts are left over."""
        if self._next < len(self._facts):
            fact = self._facts[self._next]
            what = f"request {fact.ask.id} arrives" if fact.ask else f"{fact.cancel} is cancelled"
            raise _unlike(fact.round, f"{what}, but before it nothing was left to run")
        if self._at:
            index = min(self._at)
            raise _unlike(index, f"{_in_words(self._at[index][0])}, but that round never ran")
        return False

    def close(self) -> None:
        """Nothing is held."""

    # ------------------------------------------------------------------------------------------

    def _count(self, round: Round) -> int:
        """Return the repeats until something is known to happen; what happens comes last."""
        index, count = round.index, round.repeat
        if count == 1:
            return 1
        stops_before = [_next(self._cancel_rounds, index), _next(self._fail_rounds, index)]
        if round.wakes and self._next < len(self._facts):
            stops_before.append(self._facts[self._next].round)
        for at in stops_before:
            count = min(count, at - index) if at > index else count
        at = bisect_left(self._last_rounds, index)
        if at < len(self._last_rounds):
            count = min(count, self._last_rounds[at] - index + 1)
        return count

    def _check(
        self,
        round: Round,
        count: int,
        stopped: tuple[int, ...],
        extras: list[tuple[int, int]],
    ) -> None:
        """Raise `BadInput` unless such a round could have had such an outcome."""
        index = round.index + count - 1
        for op in round.ops:
            if isinstance(op, End):
                self._yielded.pop(op.id, None)
        for request_id in round.decode:
            rounds, more = self._yielded.get(request_id, (0, 0))
            self._yielded[request_id] = (rounds + count, more)
        for request_id in stopped:
            if request_id not in round.decode and request_id not in self._before:
                raise _unlike(index, f"request {request_id} stops, but was not decoding")
        for request_id, tokens in extras:
            if request_id not in round.decode:
                raise _unlike(index, f"request {request_id} yields tokens, but was not decoding")
            rounds, more = self._yielded[request_id]
            more += tokens
            if not 0 <= rounds + more <= rounds * self._step_tokens:
                raise _unlike(
                    index,
                    f"request {request_id} has yielded {rounds + more} tokens in {rounds} steps of"
                    f" at most {self._step_tokens}",
                )
            self._yielded[request_id] = (rounds, more)


def _position(round: Round, record: FailRecord) -> int:
    """Return where the failed operation stands in the round."""
    num = len(round.ops) + len(round.decode)
    if record.position is None:
        for position in range(num):
            if named(round, position) == (record.op, record.id):
                return position
    elif record.position < num:
        return record.position
    raise _unlike(record.round, f"{_in_words(record)}, but is none of its {num}")


def _next(rounds: list[int], index: int) -> int:
    """Return the first of the sorted `rounds` after `index`, or -1."""
    at = bisect_right(rounds, index)
    return rounds[at] if at < len(rounds) else -1


def _in_words(record: FactRecord) -> str:
    match record:
        case FailRecord():
            what = f"operation {record.position}" if record.op is None else record.op
            return f"{what} fails" if record.id is None else f"{what} of request {record.id} fails"
        case StopRecord():
            return f"request {record.id} stops"
        case _:
            return f"request {record.id} yields {record.tokens:+d} tokens"


def _unlike(index: int, what: str) -> BadInput:
    return BadInput(
        f"the facts cannot be replayed: in round {index} {what}",
        "replay them under the settings they were recorded with, unchanged",
    )
