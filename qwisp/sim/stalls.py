"""A decoding stream beside a neighbour's prompt, replayed: the stall law put to the scheduler."""

from __future__ import annotations

from qwisp.cost import CostModel
from qwisp.cost.model import PS_PER_S
from qwisp.scheduling.layout import Layout
from qwisp.sim.replay import replay, settings_for
from qwisp.trace.request import Request, Trace

STREAM_PROMPT_TOKENS = 16  # not published; any length from 1 to 16 gave the same calibration


class _Rows:
    def bytes(self, rows: int) -> int:
        return rows


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
    arrival_ns = (own_ps + cost.step_ps(1)) // 1000 + 1
    requests = (
        Request(0, 0, STREAM_PROMPT_TOKENS, stream_tokens),
        Request(1, arrival_ns, prompt_tokens, 1),
    )
    context_tokens = max(prompt_tokens, STREAM_PROMPT_TOKENS + stream_tokens) + 64
    layout = Layout(
        text="whole_window:2",
        kind="whole_window",
        contexts=(context_tokens,) * 2,
        lanes=2,
        cut="first_free",
        context_tokens=context_tokens,
    )
    run = replay(
        Trace(name="two streams", requests=requests, source="generated"),
        layout,
        _Rows(),
        cost,
        settings_for(cost, budget_tokens=budget_tokens),
        stepwise=True,
    )
    table = run.executor.rounds
    alive_ps = run.executor.records[0].end_ps
    return tuple(
        end_ps - begin_ps
        for begin_ps, end_ps, grants_ps in zip(
            table.begin_ps, table.end_ps, table.grants_ps, strict=True
        )
        if grants_ps and begin_ps < alive_ps
    )


def idle_first_token_s(cost: CostModel, prompt_tokens: int, *, budget_tokens: int) -> float:
    """Return seconds from arrival to first token of one request on an idle engine, replayed."""
    layout = Layout(
        text="whole_window:1",
        kind="whole_window",
        contexts=(prompt_tokens + 64,),
        lanes=1,
        cut="first_free",
        context_tokens=prompt_tokens + 64,
    )
    requests = (Request(0, 0, prompt_tokens, 1),)
    run = replay(
        Trace(name="one request", requests=requests, source="generated"),
        layout,
        _Rows(),
        cost,
        settings_for(cost, budget_tokens=budget_tokens),
    )
    return run.executor.records[0].first_ps / PS_PER_S
