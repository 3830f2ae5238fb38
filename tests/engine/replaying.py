"""Replay of recorded engine facts through a fresh scheduler and the simulator's executor."""

from __future__ import annotations

from dataclasses import dataclass

from qwisp.cost import CostModel
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Executor, Fact, LogEntry, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Failing, Recorded, Stepwise
from qwisp.sim.cost_executor import CostExecutor

NEVER_ENDS = 2**40


@dataclass(frozen=True)
class Facts:
    """Everything the scheduler could not have known, by round index."""

    facts: tuple[Fact, ...]
    stops: tuple[tuple[int, int], ...]
    fails: tuple[tuple[int, int, str], ...]
    extras: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, recorded: Recorded) -> Facts:
        return cls(
            tuple(fact for _, fact in recorded.facts_seen),
            tuple((index, i) for index, _, i in recorded.stops),
            tuple((index, at, why) for index, _, at, why in recorded.fails),
            tuple((index, i, n) for index, _, i, n in recorded.extras),
        )


class ByRound:
    """The simulator's executor, told by round index what happened instead of by its clock."""

    def __init__(self, facts: Facts, inner: CostExecutor) -> None:
        self.inner = inner
        self._facts = list(facts.facts)
        self._stops = facts.stops
        self._extras = facts.extras
        self._jumped_to = -1
        inner.facts(0)  # every request is on record there, none of them ends by itself

    def facts(self, round_index: int) -> list[Fact]:
        until = max(round_index, self._jumped_to)
        found = [fact for fact in self._facts if fact.round <= until]
        self._facts = self._facts[len(found) :]
        return found

    def wait(self) -> bool:
        if self._facts:
            self._jumped_to = self._facts[0].round
        return bool(self._facts)

    def run(self, round: Round) -> Outcome:
        index = round.index
        ends = [at - index + 1 for at, *_ in (*self._stops, *self._extras) if at >= index]
        news = [
            fact.round - index
            for fact in self._facts
            if fact.round > index and (fact.cancel is not None or round.wakes)
        ]
        outcome = self.inner.run(round._replace(repeat=min([round.repeat, *ends, *news])))
        last = index + outcome.rounds - 1
        stopped = tuple(i for at, i in self._stops if at == last)
        produced = tuple((i, outcome.rounds + n) for at, i, n in self._extras if at == last)
        return outcome._replace(stopped=stopped, produced=produced)

    def close(self) -> None:
        self.inner.close()


def replay(
    facts: Facts, layout: Layout, size: SessionBytes, settings: Settings, *, stepwise: bool = False
) -> list[LogEntry]:
    """Return the log of a fresh scheduler over the simulator, given recorded facts."""
    scheduler = Scheduler(RowSpace(layout, size), settings)
    asks = [(0, fact.ask, NEVER_ENDS) for fact in facts.facts if fact.ask is not None]
    failed: dict[int, list[tuple[int, str]]] = {}
    for index, at, why in facts.fails:
        failed.setdefault(index, []).append((at, why))
    executor: Executor = Failing(
        ByRound(facts, CostExecutor(asks, toy_cost(settings), size)), failed
    )
    drive(scheduler, Stepwise(executor) if stepwise else executor)
    scheduler.check()
    return scheduler.log


def toy_cost(settings: Settings) -> CostModel:
    """Return a cost model whose numbers do not matter: facts come by round here."""
    return CostModel(
        name="toy",
        machine="desk",
        model="toy",
        chunk_tokens=settings.chunk_tokens,
        chunk_rule="aligned",
        round_ps=5,
        chunk_ps=100,
        token_ps=10,
        depth_ps=1,
        step_ps_by_width=((1, 1000), (8, 1600)),
        copy_bytes_per_s=10**9,
    )
