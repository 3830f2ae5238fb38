"""Executors around an executor: one step at a time, failing where told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qwisp.scheduling.contract import End, Executor, Fact, Grant, Outcome, Round


class Wrapper:
    """An executor that passes everything on to `inner`; a subclass changes what it is about."""

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


class Stepwise(Wrapper):
    """Never repeats: every round is asked for. The yardstick of the closed form."""

    def run(self, round: Round) -> Outcome:
        """Run exactly one round."""
        return self.inner.run(round._replace(repeat=1))


class Faulty(Wrapper):
    """Fails chosen operations: they and the rest of their streams' work never reach `inner`.

    `fails(round) -> positions` names operations by position, `len(ops) + i` the decode of
    `decode[i]`; they fail in repeat `repeat` of that round (0: the first), if it comes so far.
    `seen` counts the operations that passed, so that a sweep can fail each once.
    """

    def __init__(
        self, inner: Executor, fails: Callable[[Round], Iterable[int]], *, repeat: int = 0
    ) -> None:
        super().__init__(inner)
        self._fails = fails
        self._repeat = repeat
        self._held: list[Fact] = []
        self.seen = 0

    def facts(self, round_index: int) -> list[Fact]:
        """Return the inner executor's facts, those seen early first."""
        held, self._held = self._held, []
        return held + list(self.inner.facts(round_index))

    def run(self, round: Round) -> Outcome:
        """Run what is left of the round and report what was failed."""
        self.seen += len(round.ops) + len(round.decode)
        positions = sorted(self._fails(round)) if self._repeat < round.repeat else []
        if not positions:
            return self.inner.run(round)
        failed = [(at, "injected failure") for at in positions]
        if not self._repeat:
            return run_without(self.inner, round, failed)
        before = self.inner.run(round._replace(repeat=self._repeat))
        if before.rounds < self._repeat or before.stopped or before.failed:
            return before
        rest = later(round, self._repeat)
        self._held = list(self.inner.facts(rest.index))
        if self._held:
            return before  # somebody came: the scheduler is asked before the next round
        return _joined(round, before, run_without(self.inner, rest, failed))


def later(round: Round, repeats: int) -> Round:
    """Return what is left of a repeated round after `repeats` of it, grants further down.

    >>> later(Round(5, (Grant(1, 0, 8, 2, False),), (7,), 4, True), 3)[:2]
    (8, (Grant(id=1, start=24, num_tokens=8, num_chunks=2, last=False),))
    """
    ops = tuple(
        op._replace(start=op.start + repeats * op.num_tokens) if isinstance(op, Grant) else op
        for op in round.ops
    )
    return round._replace(index=round.index + repeats, ops=ops, repeat=round.repeat - repeats)


def _joined(round: Round, first: Outcome, then: Outcome) -> Outcome:
    """Return two outcomes of one round in a row as one; the first tells only what was produced."""
    lost = {named(round, position) for position, _ in then.failed}
    yielded, more = dict(first.produced), dict(then.produced)
    produced = {
        i: yielded.get(i, first.rounds) + more.get(i, then.rounds - (("decode", i) in lost))
        for i in round.decode
        if i in yielded or i in more
    }
    rounds = first.rounds + then.rounds
    return Outcome(rounds, tuple(produced.items()), then.stopped, then.failed)


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


def named(round: Round, position: int) -> tuple[str, int]:
    """Return kind and id of what stands at a position: `("Move", 7)`, `("decode", 7)`."""
    at = position - len(round.ops)
    if at >= 0:
        return "decode", round.decode[at]
    op = round.ops[position]
    return type(op).__name__, getattr(op, "id", -1)
