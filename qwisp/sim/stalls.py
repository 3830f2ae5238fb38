"""A decoding stream beside a neighbour's prompt, replayed: the stall law put to the scheduler."""

from __future__ import annotations

from qwisp.cost import CostModel
from qwisp.cost.model import PS_PER_S
from qwisp.cost.timed import Timed, TimedRound
from qwisp.policies import scheduler_for
from qwisp.scheduling.contract import Ask, Grant
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, RowBytes
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.replay import settings_for

STREAM_PROMPT_TOKENS = 16  # not published; any length from 1 to 16 gave the same calibration


def replayed_stalls(
    cost: CostModel, prompt_tokens: int, *, budget_tokens: int, stream_tokens: int
) -> tuple[int, ...]:
    """Return picoseconds of every prefilling round that a stream of `stream_tokens` lives through.

    In time order; the first is the stream's own short prefill, the others the gaps it feels while
    a neighbour's prompt of `prompt_tokens` is prefilled. The neighbour arrives once the stream
    decodes. Scheduler and executor are those of every replay, one round at a time.

    >>> from qwisp.cost import load_cost
    >>> cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
    >>> len(replayed_stalls(cost, 10553, budget_tokens=2048, stream_tokens=500))
    7
    """
    own_ps = cost.round_ps + cost.grant_ps(0, STREAM_PROMPT_TOKENS, 1) + cost.step_ps(1)
    rounds = _timed_rounds(
        cost,
        [
            (0, Ask(0, STREAM_PROMPT_TOKENS), stream_tokens),
            (own_ps + cost.step_ps(1), Ask(1, prompt_tokens), 1),
        ],
        budget_tokens,
    )
    return tuple(
        timed.elapsed
        for timed in rounds
        if 0 in timed.round.decode and any(isinstance(op, Grant) for op in timed.round.ops)
    )


def idle_first_token_s(cost: CostModel, prompt_tokens: int, *, budget_tokens: int) -> float:
    """Return seconds from arrival to first token of one request on an idle engine, replayed."""
    rounds = _timed_rounds(cost, [(0, Ask(0, prompt_tokens), 1)], budget_tokens)
    return sum(timed.elapsed for timed in rounds) / PS_PER_S


def _timed_rounds(
    cost: CostModel, arrivals: list[tuple[int, Ask, int]], budget_tokens: int
) -> list[TimedRound]:
    """Return every single round of a run in which each request has a window of its own."""
    context_tokens = max(ask.prompt_tokens + output for _, ask, output in arrivals) + 64
    num = len(arrivals)
    layout = Layout.windows(num, context_tokens)
    executor = CostExecutor(arrivals, cost, RowBytes())
    timed = Timed(Stepwise(executor), clock=lambda: executor.now_ps)
    settings = settings_for(cost, budget_tokens=budget_tokens)
    drive(scheduler_for(layout, RowBytes(), settings), timed)
    return timed.rounds
