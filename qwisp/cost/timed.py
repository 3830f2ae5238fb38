"""Times taken around any executor, turned into the points a cost model is fitted from.

`Timed` sits between the loop and an engine, so what is calibrated is what serves: the rounds
are the scheduler's own, and somebody else's engine behind the four methods calibrates as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import NamedTuple

from qwisp.cost.measured import DecodePoint, PrefillPoint
from qwisp.scheduling.contract import (
    Admit,
    Ask,
    Drop,
    End,
    Executor,
    Grant,
    Outcome,
    Round,
)
from qwisp.scheduling.wrappers import Wrapper

_CHEAP = (Admit, Drop, End)


class TimedRound(NamedTuple):
    """A round, what came of it, and how long the executor took in units of the clock."""

    round: Round
    outcome: Outcome
    elapsed: float


class Timed(Wrapper):
    """Keeps the time that the executor inside takes for every round.

    `clock` returns seconds, or the simulator's picoseconds. The executor must have finished its
    work when `run` returns, else the times are those of issuing it.
    """

    def __init__(self, inner: Executor, clock: Callable[[], float]) -> None:
        super().__init__(inner)
        self.clock = clock
        self.rounds: list[TimedRound] = []

    def run(self, round: Round) -> Outcome:
        """Run the round, keep its time."""
        begin = self.clock()
        outcome = self.inner.run(round)
        self.rounds.append(TimedRound(round, outcome, self.clock() - begin))
        return outcome


def measured_points(
    rounds: Sequence[TimedRound],
) -> tuple[tuple[PrefillPoint, ...], tuple[DecodePoint, ...]]:
    """Return prefill and decode points of rounds timed in seconds; equal shapes give one median.

    A round gives a prefill point if it holds one grant, and a decode point if it only decodes.
    Rounds with copies, several grants or a failure give none: their time has several causes. Rows
    in use are those at the middle of a repeated round.
    """
    prefills: dict[Hashable, list[float]] = defaultdict(list)
    decodes: dict[Hashable, list[float]] = defaultdict(list)
    lengths: dict[int, int] = {}
    for round, outcome, seconds in rounds:
        num = outcome.rounds
        lengths |= {op.id: op.prompt_tokens for op in round.ops if isinstance(op, Admit)}
        width = len(round.decode)
        produced = dict.fromkeys(round.decode, num) | dict(outcome.produced)
        rows = sum(lengths[i] for i in round.decode) + width * (num - 1) // 2
        rest = [op for op in round.ops if not isinstance(op, _CHEAP)]
        if not outcome.failed and not round.ops and width:
            decodes[width, rows].append(seconds / num)
        elif not outcome.failed and len(rest) == 1 and isinstance(rest[0], Grant):
            grant = rest[0]
            shape = (num, num * grant.num_chunks, grant.start, num * grant.num_tokens)
            prefills[*shape, width, num, rows].append(seconds)
        for request_id, tokens in produced.items():
            lengths[request_id] += tokens
    return (
        tuple(
            PrefillPoint(_prefill_label(shape), median(times), *shape, times=len(times))
            for shape, times in prefills.items()
        ),
        tuple(
            DecodePoint(f"{width} lanes, {rows} rows", median(times), width, rows, times=len(times))
            for (width, rows), times in decodes.items()
        ),
    )


def _prefill_label(shape: tuple[int, ...]) -> str:
    rounds, chunks, start, tokens, width, *_ = shape
    return f"{tokens} tokens from {start} in {chunks} chunks, {rounds} rounds, beside {width} lanes"


def hold_out(points: Sequence[PrefillPoint], num_used: int) -> tuple[PrefillPoint, ...]:
    """Return the points with `num_used` of them, spread evenly, for the fit; the rest test it.

    >>> points = [PrefillPoint("", 1.0, 1, 1, 0, n) for n in range(1, 6)]
    >>> [p.used for p in hold_out(points, 3)]
    [True, False, True, False, True]
    """
    last, num = len(points) - 1, min(num_used, len(points))
    kept = {round(i * last / max(1, num - 1)) for i in range(num)}
    return tuple(point._replace(used=i in kept) for i, point in enumerate(points))


def calibration_asks(
    chunk_tokens: int, context_tokens: int, lanes: int, *, steps_per_width: int = 16
) -> tuple[Ask, ...]:
    """Return requests whose run shows every term: prompts of many lengths, then every width.

    All arrive at once. Prompts halve from what a context holds down to half a chunk and repeat, so
    that short ones are prefilled beside several lanes; replies end one after the other, so that
    every width from `lanes` down to 1 decodes `steps_per_width` steps alone.

    >>> [(ask.prompt_tokens, ask.max_new) for ask in calibration_asks(64, 1024, 3)]
    [(512, 22), (256, 34), (128, 48)]
    """
    largest = max(chunk_tokens, context_tokens // 2)
    prompts = [max(chunk_tokens // 2, largest >> (i % 6)) for i in range(lanes)]
    # While later prompts are prefilled, a chunk a round, the earlier streams decode.
    rounds_after = [sum(-(-p // chunk_tokens) for p in prompts[i + 1 :]) for i in range(lanes)]
    return tuple(
        Ask(i, prompt, rounds_after[i] + steps_per_width * (i + 1))
        for i, prompt in enumerate(prompts)
    )
