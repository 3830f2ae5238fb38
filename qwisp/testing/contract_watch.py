"""Stands between the loop and an executor and writes down every breach of the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from qwisp.scheduling.contract import Ask, End, Executor, Fact, Outcome, Round
from qwisp.scheduling.wrappers import Wrapper, named
from qwisp.testing.exercised import Tally
from qwisp.testing.script import ScriptedRequest

MAX_IDLE = 1000  # rounds without a token, waits without a fact
MAX_ROUNDS = 10**6

Answer = TypeVar("Answer")


class Finding(NamedTuple):
    """A breach: the round it was seen in, the part of the contract, what happened."""

    round: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"round {self.round}, {self.rule}: {self.what}"


class Broken(Exception):
    """The executor broke the contract in a way that leaves nothing to go on with."""


class ContractWatch(Wrapper):
    """An executor that behaves as the one inside; `findings` says what that one did wrong.

    `tally` counts what its rounds held, beside those of other runs.
    """

    def __init__(
        self,
        inner: Executor,
        requests: Iterable[ScriptedRequest],
        step_tokens: int,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(inner)
        self.findings: list[Finding] = []
        self.operations: Counter[str] = Counter()
        self.tokens: Counter[int] = Counter()
        self.num_calls = 0
        self.num_rounds = 0
        self._step_tokens = step_tokens
        self._tally = tally or Tally()
        self._tally.start()
        self._asks = {request.id: request.ask for request in requests}
        self._arrived: set[int] = set()
        self._over: set[int] = set()
        self._index = 0
        self._last_fact_round = 0
        self._running: tuple[int, int, bool] = (0, 0, False)  # first and last round, wakes
        self._before: tuple[int, ...] = ()
        self._silent: Counter[int] = Counter()
        self._idle = 0

    # ---- the four methods --------------------------------------------------------------------

    def facts(self, round_index: int) -> list[Fact]:
        """Return the inner facts after a look at each."""
        found = self._try("facts", lambda: list(self.inner.facts(round_index)))
        for fact in found:
            self._idle = 0
            self._look_at_fact(fact, round_index)
        return found

    def run(self, round: Round) -> Outcome:
        """Run the round inside and compare its outcome with what was asked."""
        self._index = round.index
        self.num_calls += 1
        outcome = self._try("run", lambda: self.inner.run(round))
        self.operations.update(type(op).__name__ for op in round.ops)
        if outcome.rounds > 1:
            self.operations["repeated Grant" if round.ops else "repeated decode"] += 1
        yielded = self._look_at_outcome(round, outcome)
        self._tally.look(round, outcome, yielded)
        self.num_rounds += outcome.rounds
        if self.num_rounds > MAX_ROUNDS:
            raise self._broken("progress", f"{MAX_ROUNDS:,} rounds and no end")
        self._running = (round.index, round.index + outcome.rounds - 1, round.wakes)
        self._before = round.decode
        return outcome

    def wait(self) -> bool:
        """Wait as the inner executor does, but not forever."""
        self._idle += 1
        if self._idle > MAX_IDLE:
            raise self._broken("wait", f"said {MAX_IDLE} times that something came; nothing did")
        return bool(self._try("wait", self.inner.wait))

    def close(self) -> None:
        """Close the inner executor, twice: the second time nothing may happen."""
        for times in ("once", "twice"):
            try:
                self.inner.close()
            except Exception as error:  # whatever it raises is the finding
                self._find("close", f"closed {times} it raises {_in_words(error)}")

    # ---- facts -------------------------------------------------------------------------------

    def _look_at_fact(self, fact: Fact, round_index: int) -> None:
        what = f"request {fact.ask.id}" if fact.ask else f"the cancel of {fact.cancel}"
        if fact.round > round_index:
            self._find("facts", f"{what} is of round {fact.round}, asked up to {round_index}")
        if fact.round < self._last_fact_round:
            self._find("facts", f"{what} of round {fact.round} comes after {self._last_fact_round}")
        self._last_fact_round = max(self._last_fact_round, fact.round)
        first, last, wakes = self._running
        if first < fact.round <= last and (wakes or fact.cancel is not None):
            self._find(
                "wakes", f"{what} of round {fact.round} did not end the run of {first} to {last}"
            )
        if fact.ask is not None:
            self._look_at_ask(fact.ask)
        if fact.cancel is not None and fact.cancel not in self._arrived:
            self._find("facts", f"{what} comes before the request")

    def _look_at_ask(self, ask: Ask) -> None:
        known = self._asks.get(ask.id)
        if ask.id in self._arrived:
            raise self._broken("facts", f"request {ask.id} arrives twice")
        if known is None or ask[:3] != known[:3]:
            self._find("facts", f"{ask} arrives, but its client asked {known}")
        self._arrived.add(ask.id)

    # ---- outcomes ----------------------------------------------------------------------------

    def _look_at_outcome(self, round: Round, outcome: Outcome) -> dict[int, int]:
        if not 1 <= outcome.rounds <= round.repeat:
            raise self._broken("rounds", f"{outcome.rounds} ran where 1 to {round.repeat} were due")
        self._over |= {op.id for op in round.ops if isinstance(op, End)}
        self._look_at_failures(round, outcome)
        yielded = dict.fromkeys(round.decode, outcome.rounds)
        most = outcome.rounds * self._step_tokens
        seen: set[int] = set()
        for request_id, num_tokens in outcome.produced:
            if request_id not in yielded or request_id in seen:
                again = "is listed twice" if request_id in seen else "was not to decode"
                raise self._broken("produced", f"request {request_id} {again}")
            if not 0 <= num_tokens <= most:
                raise self._broken(
                    "produced", f"request {request_id}: {num_tokens} tokens, at most {most} can be"
                )
            seen.add(request_id)
            yielded[request_id] = num_tokens
        for request_id, num_tokens in yielded.items():
            self.tokens[request_id] += num_tokens
            self._silent[request_id] = 0 if num_tokens else self._silent[request_id] + 1
            if self._silent[request_id] > MAX_IDLE:
                raise self._broken("progress", f"request {request_id} yields no tokens any more")
        for request_id in outcome.stopped:
            if request_id in self._over:
                self._find("stopped", f"request {request_id} is over already")
            elif request_id not in round.decode and request_id not in self._before:
                self._find("stopped", f"request {request_id} was not decoding")
            if outcome.stopped.count(request_id) > 1:
                self._find("stopped", f"request {request_id} is listed twice")
        return yielded

    def _look_at_failures(self, round: Round, outcome: Outcome) -> None:
        positions = [position for position, _ in outcome.failed]
        if positions != sorted(set(positions)):
            self._find("failed", f"positions {positions} are not in order")
        for position, reason in outcome.failed:
            if not 0 <= position < len(round.ops) + len(round.decode):
                raise self._broken("failed", f"position {position} is none of the round")
            kind, request_id = named(round, position)
            self._find("failed", f"{kind} of request {request_id}: {reason}")

    def end(self, drained: bool) -> None:
        """Look at what is left when the loop is over."""
        if drained:
            for request_id in sorted(self._asks.keys() - self._arrived):
                self._find("facts", f"request {request_id} never arrives")

    # ------------------------------------------------------------------------------------------

    def _try(self, rule: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except Exception as error:  # whatever it raises is the finding
            raise self._broken(rule, f"raises {_in_words(error)}") from error

    def _find(self, rule: str, what: str) -> None:
        self.findings.append(Finding(self._index, rule, what))

    def _broken(self, rule: str, what: str) -> Broken:
        self._find(rule, what)
        return Broken(what)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
