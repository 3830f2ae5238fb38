"""The only loop. Simulator, server and anybody's engine run it."""

from __future__ import annotations

from collections.abc import Iterable

from qwisp.scheduling.contract import Executor, Fact
from qwisp.scheduling.scheduler import Scheduler


def drive(scheduler: Scheduler, executor: Executor) -> None:
    """Plan, run and settle rounds until nothing is live and nothing will arrive."""
    while True:
        if facts := executor.facts(scheduler.index):
            deliver(scheduler, facts)
        round = scheduler.plan()
        if round is None:
            if not executor.wait():
                return
            continue
        outcome = executor.run(round)
        # What arrived while a repeated round ran was known before that round was over.
        if outcome.rounds > 1 and (facts := executor.facts(round.index + outcome.rounds - 1)):
            deliver(scheduler, facts)
        scheduler.settle(round, outcome)


def deliver(scheduler: Scheduler, facts: Iterable[Fact]) -> None:
    """Bring arrivals and cancels to the scheduler, in order."""
    for fact in facts:
        if fact.ask is not None:
            scheduler.submit(fact.ask, fact.round)
        if fact.cancel is not None:
            scheduler.cancel(fact.cancel, fact.round)
