"""Clients known beforehand: who asks in which round, and who goes away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qwisp.scheduling.contract import Ask, Fact, Round


class ScriptedRequest(NamedTuple):
    """A request that arrives in round `arrives` and is cancelled in round `cancelled`, if ever.

    `output_tokens` is where its reply ends by itself: only an engine may know it. `prefix` holds
    the keys of its prompt; equal keys stand for equal tokens.
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    max_new: int | None = None
    arrives: int = 0
    cancelled: int | None = None
    prefix: tuple[int, ...] = ()

    @property
    def ask(self) -> Ask:
        """What the scheduler is told."""
        return Ask(self.id, self.prompt_tokens, self.max_new, self.prefix)


class Script:
    """Facts of scripted requests, by round index. Idle time is no rounds: it is left out.

    >>> script = Script([ScriptedRequest(7, 10, 5), ScriptedRequest(8, 10, 5, arrives=900)])
    >>> [(fact.round, fact.ask.id) for fact in script.facts(0)], script.wait()
    ([(0, 7)], True)
    >>> [(fact.round, fact.ask.id) for fact in script.facts(4)]
    [(4, 8)]
    """

    def __init__(self, requests: Iterable[ScriptedRequest]) -> None:
        facts: list[Fact] = []
        for request in requests:
            facts.append(Fact(request.arrives, ask=request.ask))
            if request.cancelled is not None:
                facts.append(Fact(request.cancelled, cancel=request.id))
        self._facts = sorted(facts, key=lambda fact: fact.round)
        self._next = 0
        self._idle = 0  # rounds left out so far
        self._waited = False

    def facts(self, round_index: int) -> list[Fact]:
        """Return what is known up to a round, oldest first, each once."""
        if self._waited:
            self._idle += max(0, self._facts[self._next].round - self._idle - round_index)
            self._waited = False
        found = []
        while self._next < len(self._facts):
            fact = self._facts[self._next]
            if fact.round - self._idle > round_index:
                break
            found.append(fact._replace(round=fact.round - self._idle))
            self._next += 1
        return found

    def wait(self) -> bool:
        """Let the next fact come at once; False when there is none."""
        self._waited = self._next < len(self._facts)
        return self._waited

    def rounds_free(self, round: Round) -> int:
        """Return the rounds before a cancel, or an arrival that could change the plan."""
        for fact in self._facts[self._next :]:
            if fact.cancel is not None or round.wakes:
                return max(1, min(round.repeat, fact.round - self._idle - round.index))
        return round.repeat
