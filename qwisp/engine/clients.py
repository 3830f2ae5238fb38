"""Who asks and who listens: the executor's view of clients, and a scripted set of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from qwisp.engine.sampling import GREEDY, Sampling
from qwisp.errors import QwispError
from qwisp.scheduling.contract import Ask, End, Fact, Round

Answer = TypeVar("Answer")


class ClientFailed(QwispError):
    """A client's own code raised: that client's stream ends, whatever it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """Token ids of a prompt and how to go on; `stop_tokens` end a reply by themselves."""

    prompt: tuple[int, ...]
    sampling: Sampling = GREEDY
    stop_tokens: frozenset[int] = frozenset()


class Clients(Protocol):
    """Where facts come from and tokens go. One object, so that a reply finds its request."""

    def facts(self, round_index: int) -> list[Fact]:
        """Return arrivals and cancels visible up to this round, oldest first, each once."""

    def wait(self) -> bool:
        """Block until something arrives; False when nothing ever will."""

    def request(self, request_id: int) -> TokenRequest:
        """Return the request of an id that arrived."""

    def rounds_free(self, round: Round) -> int:
        """Return how many rounds may run before an arrival or cancel must be looked at (>= 1)."""

    def token(self, request_id: int, token: int, logits: np.ndarray | None) -> None:
        """Take one more token of a reply; `logits` are its raw words where they are kept."""

    def ended(self, end: End) -> None:
        """Take the end of a request."""


@dataclass(slots=True)
class Reply:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    end: End | None = None


class ScriptedClients:
    """Clients known beforehand: requests by id, arrivals and cancels by round index.

    A `Fact` of round r can be known to round r. When nothing is live, time jumps to the next fact.
    `replies` holds what each request got.
    """

    def __init__(self, requests: Mapping[int, TokenRequest], facts: Sequence[Fact]) -> None:
        self._requests = dict(requests)
        self._facts = sorted(facts, key=lambda fact: fact.round)
        self._next = 0
        self._jumped_to = -1
        self.replies: dict[int, Reply] = {request_id: Reply() for request_id in requests}

    @classmethod
    def of(
        cls,
        requests: Mapping[int, TokenRequest],
        *,
        max_new: Mapping[int, int | None],
        arrivals: Mapping[int, int] | None = None,
        cancels: Mapping[int, int] | None = None,
    ) -> ScriptedClients:
        """Return a script from rounds of arrival (0 where absent) and of cancellation."""
        arrivals, cancels = arrivals or {}, cancels or {}
        facts = [
            Fact(arrivals.get(i, 0), ask=Ask(i, len(request.prompt), max_new[i]))
            for i, request in requests.items()
        ]
        facts += [Fact(at, cancel=request_id) for request_id, at in cancels.items()]
        return cls(requests, facts)

    def facts(self, round_index: int) -> list[Fact]:
        """Return the facts up to this round, each once."""
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

    def request(self, request_id: int) -> TokenRequest:
        """Return a request by id."""
        return self._requests[request_id]

    def rounds_free(self, round: Round) -> int:
        """Return the rounds until the next cancel, or arrival where one could change the plan."""
        for fact in self._facts[self._next :]:
            if fact.cancel is not None or round.wakes:
                return max(1, fact.round - round.index)
        return round.repeat

    def token(self, request_id: int, token: int, logits: np.ndarray | None) -> None:
        """Keep a token."""
        reply = self.replies[request_id]
        reply.tokens.append(token)
        if logits is not None:
            reply.logits.append(logits)

    def ended(self, end: End) -> None:
        """Keep an end."""
        self.replies[end.id].end = end


def ask_client(call: Callable[[], Answer]) -> Answer:
    """Return what a client's code returns. Raises `ClientFailed` for whatever it raises."""
    try:
        return call()
    except Exception as error:
        said = str(error).partition("\n")[0]
        what = f"its client failed: {type(error).__name__}: {said}"
        raise ClientFailed(what, "look at the code that takes its tokens") from error
