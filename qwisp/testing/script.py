"""Clients known beforehand: who asks in which round, and who goes away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qwisp.scheduling.contract import Ask, Fact, Round


class ScriptedRequest(NamedTuple):
    """A request that arrives in round `arrives` and is cancelled in round `cancelled`, if ever.

    `output_tokens` is where its reply ends by itself: only an engine may know it.
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    max_new: int | None = None
    arrives: int = 0
    cancelled: int | None = None

    @property
    def ask(self) -> Ask:
        """What the scheduler is told."""
        return Ask(self.id, self.prompt_tokens, self.max_new)


class Script:
    """Facts of scripted requests, by round index. When nothing is live, time jumps to the next.

    >>> script = Script([ScriptedRequest(7, 10, 5), ScriptedRequest(8, 10, 5, arrives=9)])
    >>> [fact.ask.id for fact in script.facts(0)], script.wait(), script.facts(0)[0].ask.id
    ([7], True, 8)
    """

    def __init__(self, requests: Iterable[ScriptedRequest]) -> None:
        facts: list[Fact] = []
        for request in requests:
            facts.append(Fact(request.arrives, ask=request.ask))
            if request.cancelled is not None:
                facts.append(Fact(request.cancelled, cancel=request.id))
        self._facts = sorted(facts, key=lambda fact: fact.round)
        self._next = 0
        self._jumped_to = -1

    def facts(self, round_index: int) -> list[Fact]:
        """Return what is known up to a round, oldest first, each once."""
        found = []
        until = max(round_index, self._jumped_to)
        while self._next < len(self._facts) and self._facts[self._next].round <= until:
            fact = self._facts[self._next]
            found.append(fact._replace(round=min(fact.round, round_index)))
            self._next += 1
        return found

    def wait(self) -> bool:
        """Jump to the next fact; False when there is none."""
        if self._next == len(self._facts):
            return False
        self._jumped_to = self._facts[self._next].round
        return True

    def rounds_free(self, round: Round) -> int:
        """Return the rounds before a cancel, or an arrival that could change the plan."""
        for fact in self._facts[self._next :]:
            if fact.cancel is not None or round.wakes:
                return max(1, min(round.repeat, fact.round - round.index))
        return round.repeat
