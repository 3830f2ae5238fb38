"""A run as the records of a facts file, kept while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from qwisp.errors import BadInput
from qwisp.facts.file import (
    OPS,
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactRecord,
    FailRecord,
    StopRecord,
    write_facts,
)
from qwisp.facts.header import header_of
from qwisp.scheduling.contract import Executor, Fact, Outcome, Round
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.wrappers import Wrapper, named
from qwisp.trace.clock_text import NS_PER_S


class Recorded(Wrapper):
    """Keeps everything about a run that its scheduler could not have known.

    `records` come as they were told; `facts_of` puts them in the order of a file. `clock` returns
    seconds; None writes zeros.
    """

    def __init__(self, inner: Executor, clock: Callable[[], float] | None = None) -> None:
        super().__init__(inner)
        self._clock = clock or (lambda: 0.0)
        self.records: list[FactRecord] = []

    def facts(self, round_index: int) -> list[Fact]:
        """Return the inner facts and keep them."""
        found = self.inner.facts(round_index)
        self.keep(found)
        return found

    def keep(self, facts: Iterable[Fact]) -> None:
        """Keep arrivals and cancels as of now."""
        now_ns = self._now_ns()
        for fact in facts:
            if fact.ask is not None:
                self.records.append(AskRecord(fact.round, now_ns, *fact.ask))
            if fact.cancel is not None:
                self.records.append(CancelRecord(fact.round, now_ns, fact.cancel))

    def run(self, round: Round) -> Outcome:
        """Run the round and keep what came of it besides one token a decoder.

        A failed operation is kept by name: positions shift when a refusal is told in another round.
        """
        outcome = self.inner.run(round)
        rounds = outcome.rounds
        when = round.index + rounds - 1, self._now_ns()
        lost = [(*named(round, at), why) for at, why in outcome.failed]
        failed = {i for kind, i, _ in lost if kind == "decode"}
        self.records += [
            # Of a stream that failed, silence would say that it got none in the last round.
            *(
                ExtraRecord(*when, i, num - rounds)
                for i, num in outcome.produced
                if num != rounds or i in failed
            ),
            *(FailRecord(*when, None, why, kind, i) for kind, i, why in lost),
            *(StopRecord(*when, i) for i in outcome.stopped),
        ]
        return outcome

    def _now_ns(self) -> int:
        return max(0, round(self._clock() * NS_PER_S))


def write_run(path: str | Path, recorded: Recorded, scheduler: Scheduler) -> None:
    """Write the facts of a finished run, and the digest of its decisions, for `replay_facts`.

    Raises `BadInput` for a path that cannot be written and sessions that a header cannot say.
    """
    space = scheduler.space
    header = header_of(space.layout, scheduler.settings, space.size, log=scheduler.log)
    write_facts(path, header, facts_of(recorded))


def facts_of(recorded: Recorded) -> tuple[FactRecord, ...]:
    """Return the facts of a run by round: arrivals and cancels first, then what the round did.

    Cancels of requests that had not arrived and failures of `End` and `Drop` are left out: they
    changed nothing. Raises `BadInput` when an id was used twice, because ids name the requests.
    """
    known: set[int] = set()
    kept: list[FactRecord] = []
    for record in recorded.records:
        match record:
            case AskRecord() if record.id in known:
                raise BadInput(
                    f"request {record.id} arrived twice", "number the requests of a run once each"
                )
            case AskRecord():
                known.add(record.id)
            case CancelRecord() if record.id not in known:
                continue
            case FailRecord() if record.op not in OPS:
                continue
        kept.append(record)
    return tuple(sorted(kept, key=_by_round))


def _by_round(record: FactRecord) -> tuple[int, bool]:
    return record.round, not isinstance(record, AskRecord | CancelRecord)
