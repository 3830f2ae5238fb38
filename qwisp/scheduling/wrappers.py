"""Executors around an executor: one step at a time, one failing operation, everything recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qwisp.scheduling.contract import End, Executor, Fact, Outcome, Round


class _Wrapper:
    """Passes everything on to `inner`."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    def facts(self, round_index: int) -> list[Fact]:
        """Return the inner executor's facts."""
        return self.inner.facts(round_index)

    def run(self, round: Round) -> Outcome:
        """Run the round on the inner executor."""
        return self.inner.run(round)

    def wait(self) -> bool:
        """Wait as the inner executor does."""
        return self.inner.wait()

    def close(self) -> None:
        """Close the inner executor."""
        self.inner.close()


class Stepwise(_Wrapper):
    """Never repeats: every round is asked for. The yardstick of the closed form."""

    def run(self, round: Round) -> Outcome:
        """Run exactly one round."""
        return self.inner.run(round._replace(repeat=1))


class Faulty(_Wrapper):
    """Fails chosen operations: they and the rest of their streams' work never reach `inner`.

    `fails(round) -> positions` names operations by position, `len(ops) + i` the decode of
    `decode[i]`. `seen` counts the operations that passed, so that a sweep can fail each once.
    """

    def __init__(self, inner: Executor, fails: Callable[[Round], Iterable[int]]) -> None:
        super().__init__(inner)
        self._fails = fails
        self.seen = 0

    def run(self, round: Round) -> Outcome:
        """Run what is left of the round and report what was failed."""
        positions = sorted(self._fails(round))
        self.seen += len(round.ops) + len(round.decode)
        if not positions:
            return self.inner.run(round)
        return run_without(self.inner, round, [(at, "injected failure") for at in positions])


class Failing(_Wrapper):
    """Replays recorded failures: `{round index: [(position, reason)]}`."""

    def __init__(self, inner: Executor, failed: Mapping[int, list[tuple[int, str]]]) -> None:
        super().__init__(inner)
        self._failed = failed
        self._indices = sorted(failed)

    def run(self, round: Round) -> Outcome:
        """Run up to the next recorded failure, or the round in which it happened."""
        if round.index in self._failed:
            return run_without(self.inner, round, self._failed[round.index])
        ahead = [index - round.index for index in self._indices if index > round.index]
        return self.inner.run(round._replace(repeat=min([round.repeat, *ahead])))


def run_without(
    inner: Executor, round: Round, failed: list[tuple[int, str]], repeat: int = 1
) -> Outcome:
    """Run `round` without the failed operations and what follows of their streams."""
    num_ops = len(round.ops)
    lost: set[int] = set()
    dead_from: dict[int, int] = {}
    for position, _ in failed:
        if position >= num_ops:
            dead_from.setdefault(round.decode[position - num_ops], position)
            continue
        op = round.ops[position]
        lost.add(position)
        if not isinstance(op, End) and hasattr(op, "id"):
            dead_from.setdefault(op.id, position)
    kept = [
        position
        for position, op in enumerate(round.ops)
        if position not in lost
        and (isinstance(op, End) or position < dead_from.get(getattr(op, "id", None), num_ops))
    ]
    decode = tuple(i for i in round.decode if i not in dead_from)
    left = round._replace(ops=tuple(round.ops[p] for p in kept), decode=decode, repeat=repeat)
    outcome = inner.run(left)
    positions = kept + [num_ops + round.decode.index(i) for i in decode]
    also = [(positions[at], reason) for at, reason in outcome.failed]
    return outcome._replace(
        stopped=tuple(i for i in outcome.stopped if i not in dead_from),
        failed=tuple(sorted([*failed, *also])),
    )


class Recorded(_Wrapper):
    """Keeps every fact of a run with its round index and time, ready to be replayed.

    `stops`, `fails` and `extras` (decoders that did not yield one token a round: the difference)
    hold `(round, time_s, ...)`; `failed_ops` names the operations of `fails` by kind and id, since
    positions shift when a refusal is told in another round. `clock` returns seconds; None writes
    zeros.
    """

    def __init__(self, inner: Executor, clock: Callable[[], float] | None = None) -> None:
        super().__init__(inner)
        self._clock = clock or (lambda: 0.0)
        self.facts_seen: list[tuple[float, Fact]] = []
        self.stops: list[tuple[int, float, int]] = []
        self.fails: list[tuple[int, float, int, str]] = []
        self.failed_ops: list[tuple[str, int]] = []
        self.extras: list[tuple[int, float, int, int]] = []
        self.num_runs = 0
        self.num_rounds = 0

    def facts(self, round_index: int) -> list[Fact]:
        """Return the inner facts and keep them."""
        found = self.inner.facts(round_index)
        now_s = self._clock()
        self.facts_seen.extend((now_s, fact) for fact in found)
        return found

    def run(self, round: Round) -> Outcome:
        """Run the round and keep what the scheduler could not have known."""
        outcome = self.inner.run(round)
        index, now_s = round.index + outcome.rounds - 1, self._clock()
        self.num_runs += 1
        self.num_rounds += outcome.rounds
        self.stops.extend((index, now_s, request_id) for request_id in outcome.stopped)
        self.fails.extend((index, now_s, at, reason) for at, reason in outcome.failed)
        self.failed_ops.extend(named(round, at) for at, _ in outcome.failed)
        self.extras.extend(
            (index, now_s, request_id, num_tokens - outcome.rounds)
            for request_id, num_tokens in outcome.produced
            if num_tokens != outcome.rounds
        )
        return outcome


def named(round: Round, position: int) -> tuple[str, int]:
    """Return kind and id of what stands at a position: `("Move", 7)`, `("decode", 7)`."""
    at = position - len(round.ops)
    if at >= 0:
        return "decode", round.decode[at]
    op = round.ops[position]
    return type(op).__name__, getattr(op, "id", -1)
