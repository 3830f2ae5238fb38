"""A run in a few numbers, and the verdict word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from qwisp.cost.offered import Offered, offered_load, solo_prefill_ps

if TYPE_CHECKING:
    from qwisp.sim.run import Run

Verdict = Literal["stable", "backlogged", "overloaded"]
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution with its count, in its name's unit; None where nothing was measured."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run comes to. `load_ratio` is offered load over capacity at the replayed rate.

    `truncated` counts replies cut by their maximum; they are finished, but outside goodput.
    `mean_decoding` is the decoders of a round, averaged over time; `extrapolated` the share of
    reply tokens that came at widths beyond the measured decode table. `cached` is the share of
    prompt tokens restored from stored prefixes. `wasted` is the share of the
    held row-seconds that no token used; `passed` counts later requests that went first, and
    `most_passed` is what the unluckiest request suffered. The stall law beside the percentiles: of
    each answered request `stall_rounds` is k, the rounds that also prefilled for others while it
    decoded, `stalled_s` is S, their sum, and `worst_stall_s` is at least S / k.
    """

    requests: int
    finished: int
    refused: int
    failed: int
    cancelled: int
    truncated: int
    moves: int
    pauses: int
    waits_by_binding: dict[str, int]
    refusals_by_binding: dict[str, int]
    queue_s: Spread
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    worst_stall_s: Spread
    stalled_s: Spread
    stall_rounds: Spread
    makespan_s: float
    output_tokens_per_s: float
    mean_decoding: float
    extrapolated: float
    cached: float
    wasted: float | None
    passed: int
    most_passed: int
    load_ratio: float | None
    verdict: Verdict
    why: str


def spread(values: pl.Series) -> Spread:
    """Return count, mean, percentiles (linear between ranks) and maximum of a column.

    >>> spread(pl.Series([1.0, 2.0, None])).p50
    1.5
    """
    known = values.drop_nulls().to_numpy()
    if not len(known):
        return Spread(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, max=None)
    p50, p90, p95, p99 = (float(p) for p in np.percentile(known, PERCENTILES))
    mean = float(known.mean())
    return Spread(
        n=len(known), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=float(known.max())
    )


def summarize(run: Run) -> Summary:
    """Return the summary of a run."""
    frame, counts = run.requests, run.counts
    rounds = run.executor.rounds
    columns = rounds.columns()
    makespan_s = rounds.end_ps / 1e12
    waits = frame["waited_for"].drop_nulls().value_counts(name="n")
    widths = columns["width"].astype(np.int64)
    decoding = float(((columns["end_ps"] - columns["begin_ps"]) * widths / 1e12).sum())
    tokens = widths * columns["rounds"].astype(np.int64)
    beyond = np.array([run.cost.is_extrapolated(w) for w in range(int(widths.max(initial=0)) + 1)])
    offered = offered_load(run.trace, run.cost, budget=run.settings.budget_tokens)
    verdict, why, ratio = judge(run, offered)
    return Summary(
        requests=counts["submitted"],
        finished=counts["finished"],
        refused=counts["refused"],
        failed=counts["failed"],
        cancelled=counts["cancelled"],
        truncated=int(frame["truncated"].sum()),
        moves=int(frame["moves"].sum()),
        pauses=int(frame["pauses"].sum()),
        waits_by_binding=dict(sorted(waits.iter_rows())),
        refusals_by_binding=_refusals(frame) if counts["refused"] else {},
        queue_s=spread(frame["queue_s"]),
        ttft_s=spread(frame["ttft_s"]),
        tpot_s=spread(frame["tpot_s"]),
        e2e_s=spread(frame["e2e_s"]),
        worst_stall_s=spread(frame["worst_stall_s"]),
        stalled_s=spread(frame["stalled_s"]),
        stall_rounds=spread(frame.filter(pl.col("ttft_s").is_not_null())["stall_rounds"]),
        makespan_s=makespan_s,
        output_tokens_per_s=int(frame["produced_tokens"].sum()) / makespan_s if makespan_s else 0.0,
        mean_decoding=decoding / makespan_s if makespan_s else 0.0,
        extrapolated=float(tokens[beyond[widths]].sum() / max(1, tokens.sum())),
        cached=int(frame["cached_tokens"].sum()) / max(1, int(frame["prompt_tokens"].sum())),
        wasted=_wasted(frame),
        passed=int(frame["passed"].sum()),
        most_passed=int(frame["passed"].max() or 0),
        load_ratio=ratio,
        verdict=verdict,
        why=why,
    )


def _refusals(frame: pl.DataFrame) -> dict[str, int]:
    """Return how many requests were refused for what: a reason names its resource first."""
    reasons = frame.filter(pl.col("outcome") == "refused")["reason"]
    found = reasons.str.split(": ").list.first().value_counts(name="n")
    return dict(sorted(found.iter_rows()))


def _wasted(frame: pl.DataFrame) -> float | None:
    """Return the share of held row-seconds without a token: the prompt fills the place evenly
    during prefill, the reply during decode and its pauses."""
    held = frame["held_row_s"].sum()
    served = frame.filter(pl.col("ttft_s").is_not_null())
    prefill_s = served["ttft_s"] - served["queue_s"]
    decode_s = served["e2e_s"] - served["ttft_s"]
    prompt, produced = served["prompt_tokens"], served["produced_tokens"]
    used = (prompt * prefill_s / 2 + (prompt + produced / 2) * decode_s).sum()
    return max(0.0, 1 - used / held) if held else None


def judge(run: Run, offered: Offered) -> tuple[Verdict, str, float | None]:
    """Return the verdict word, its reason with the numbers, and the load ratio at this rate.

    Overloaded: load above capacity. Backlogged: p95 queue time of the last quarter of arrivals
    above 1 s and above twice that of the second quarter, or the drain after the last arrival
    longer than the longest request would take alone. Else stable.
    """
    ratio = None if offered.ratio is None else offered.ratio * float(run.rate)
    if ratio is not None and ratio > 1:
        return "overloaded", f"offered load is {ratio:.2f} x capacity", ratio
    frame = run.requests
    quarter = max(1, len(frame) // 4)
    early = spread(frame["queue_s"].slice(quarter, quarter)).p95 or 0.0
    late = spread(frame["queue_s"].tail(quarter)).p95 or 0.0
    if late > max(1.0, 2 * early):
        why = f"p95 queue time grows from {early:,.1f} s to {late:,.1f} s"
        return "backlogged", why, ratio
    end_s = run.executor.rounds.end_ps / 1e12
    drain_s = end_s - frame["arrival_s"].max() if len(frame) else 0.0
    longest_s = _longest_solo_s(run)
    if drain_s > longest_s:
        why = f"the drain takes {drain_s:,.1f} s, the longest request alone {longest_s:,.1f} s"
        return "backlogged", why, ratio
    text = "a burst" if ratio is None else f"load is {ratio:.2f} of capacity"
    return "stable", f"{text}; p95 queue time {late:,.1f} s in the last quarter", ratio


def _longest_solo_s(run: Run) -> float:
    prompts = run.requests["prompt_tokens"].to_numpy()
    outputs = run.requests["produced_tokens"].to_numpy()
    if not len(prompts):
        return 0.0
    alone = solo_prefill_ps(run.cost, prompts, run.settings.budget_tokens).astype(float)
    rows = (prompts + outputs) * float(run.cost.row_ps)
    return float((alone + outputs * (run.cost.step_ps(1) + rows)).max()) / 1e12
