"""A run in a few numbers, the verdict word, and its goodput under a promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from qwisp.cost.model import PS_PER_S
from qwisp.cost.offered import Offered, offered_load, solo_e2e_ps
from qwisp.errors import BadInput
from qwisp.policies import scheduler_for
from qwisp.scheduling.drive import drive
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RequestRecord

if TYPE_CHECKING:
    from qwisp.sim.run import Run


Verdict = Literal["stable", "backlogged", "overloaded"]
PERCENTILES = (50, 90, 95, 99)
REPLAYED = 3  # requests that a verdict may replay alone


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

    Distributions, `cached`, `wasted`, `passed` and `output_tokens_per_s` are over finished
    requests; each distribution says its n. `requests`, the endings, `moves`, `pauses`, the waits
    and the refusals count all, and the verdict is about the requests that ran.

    `truncated` counts replies cut by their maximum; they are finished, but outside goodput.
    `mean_decoding` is the decoders of a round, averaged over time; `extrapolated` the share of
    reply tokens that came at widths beyond the measured decode table. `cached` is the share of
    prompt tokens restored from stored prefixes. `wasted` is the share of the
    held row-seconds that no token used; `passed` counts later requests that went first, and
    `most_passed` is what the unluckiest request suffered. The stall law beside the percentiles: of
    each finished request `stall_rounds` is k, the rounds that also prefilled for others while it
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

    @property
    def lost(self) -> int:
        """Requests refused, failed, cancelled or cut by their maximum: what plans rank by first."""
        return self.refused + self.failed + self.cancelled + self.truncated


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
    done = frame.filter(pl.col("outcome") == "finished") if counts["submitted"] else frame
    rounds = run.executor.rounds
    columns = rounds.columns()
    makespan_s = rounds.end_ps / 1e12
    waits = frame["waited_for"].drop_nulls().value_counts(name="n")
    widths = columns["width"].astype(np.int64)
    decoding = float(((columns["end_ps"] - columns["begin_ps"]) / 1e12 * widths).sum())
    tokens = widths * columns["rounds"].astype(np.int64)
    beyond = np.array([run.cost.is_extrapolated(w) for w in range(int(widths.max(initial=0)) + 1)])
    verdict, why, ratio = judge(run, _offered(run))
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
        queue_s=spread(done["queue_s"]),
        ttft_s=spread(done["ttft_s"]),
        tpot_s=spread(done["tpot_s"]),
        e2e_s=spread(done["e2e_s"]),
        worst_stall_s=spread(done["worst_stall_s"]),
        stalled_s=spread(done["stalled_s"]),
        stall_rounds=spread(done["stall_rounds"]),
        makespan_s=makespan_s,
        output_tokens_per_s=int(done["produced_tokens"].sum()) / makespan_s if makespan_s else 0.0,
        mean_decoding=decoding / makespan_s if makespan_s else 0.0,
        extrapolated=float(tokens[beyond[widths]].sum() / max(1, tokens.sum())),
        cached=int(done["cached_tokens"].sum()) / max(1, int(done["prompt_tokens"].sum())),
        wasted=_wasted(done),
        passed=int(done["passed"].sum()),
        most_passed=int(done["passed"].max() or 0),
        load_ratio=ratio,
        verdict=verdict,
        why=why,
    )


def _refusals(frame: pl.DataFrame) -> dict[str, int]:
    """Return how many requests were refused for what: a reason names its resource first."""
    reasons = frame.filter(pl.col("outcome") == "refused")["reason"]
    found = reasons.str.split(": ").list.first().value_counts(name="n")
    return dict(sorted(found.iter_rows()))


def _offered(run: Run) -> Offered | None:
    """Return the load of the requests that could run, None where there were none."""
    trace = run.trace
    if run.counts["refused"]:
        records = run.executor.records
        kept = tuple(r for r in trace.requests if records[r.id].outcome != "refused")
        trace = replace(trace, requests=kept)
        if not kept:
            return None
    return offered_load(trace, run.cost, budget=run.settings.budget_tokens)


def _wasted(served: pl.DataFrame) -> float | None:
    """Return the share of held row-seconds without a token: the prompt fills the place evenly
    during prefill, the reply during decode and its pauses."""
    held = served["held_row_s"].sum()
    prefill_s = served["ttft_s"] - served["queue_s"]
    decode_s = served["e2e_s"] - served["ttft_s"]
    prompt, produced = served["prompt_tokens"], served["produced_tokens"]
    used = (prompt * prefill_s / 2 + (prompt + produced / 2) * decode_s).sum()
    return max(0.0, 1 - used / held) if held else None


def judge(run: Run, offered: Offered | None) -> tuple[Verdict, str, float | None]:
    """Return the verdict word, its reason with the numbers, and the load ratio at this rate.

    Overloaded: load above capacity. Backlogged: p95 queue time of the last quarter of arrivals
    above 1 s and above twice that of the second quarter, or the drain after the last arrival
    longer than the longest request would take alone. Else stable. All of it is about the requests
    that ran, so one that was refused changes nothing; whole picoseconds are compared.
    """
    if offered is None:
        return "stable", "no request could run", None
    exact = None if offered.exact_ratio is None else offered.exact_ratio * run.rate
    ratio = None if exact is None else float(exact)
    if exact is not None and exact > 1:
        return "overloaded", f"offered load is {_apart(exact, 1, 2)[0]} x capacity", ratio
    ran = [r for r in run.executor.records.values() if r.admitted_ps >= 0]
    queues_ps = [r.admitted_ps - r.arrival_ps for r in ran]
    quarter = max(1, len(ran) // 4)
    early_ps = _p95(queues_ps[quarter : 2 * quarter])
    late_ps = _p95(queues_ps[-quarter:])
    limit_ps = max(Fraction(PS_PER_S), 2 * early_ps)
    if late_ps > limit_ps:
        late, _ = _apart(late_ps / PS_PER_S, limit_ps / PS_PER_S)
        why = f"p95 queue time grows from {float(early_ps / PS_PER_S):,.1f} s to {late} s"
        return "backlogged", why, ratio
    drain_ps = max((r.end_ps for r in ran), default=0) - max((r.arrival_ps for r in ran), default=0)
    longest_ps = longest_alone_ps(run, ran, drain_ps)
    if drain_ps > longest_ps:
        drain, longest = _apart(Fraction(drain_ps, PS_PER_S), Fraction(longest_ps, PS_PER_S))
        why = f"the drain takes {drain} s, the longest request alone {longest} s"
        return "backlogged", why, ratio
    text = "a burst" if exact is None else f"load is {_apart(exact, 1, 2)[0]} of capacity"
    late_s = float(late_ps / PS_PER_S)
    return "stable", f"{text}; p95 queue time {late_s:,.1f} s in the last quarter", ratio


def _p95(values: list[int]) -> Fraction:
    """Return the 95th percentile, linear between ranks and exact; 0 without values.

    >>> _p95([30, 10, 20]), _p95([7]), _p95([])
    (Fraction(29, 1), Fraction(7, 1), Fraction(0, 1))
    """
    if not values:
        return Fraction(0)
    ranked = sorted(values)
    below, hundredths = divmod((len(ranked) - 1) * 95, 100)
    above = ranked[min(below + 1, len(ranked) - 1)]
    return ranked[below] + Fraction(hundredths * (above - ranked[below]), 100)


def _apart(one: Fraction, other: Fraction | int, digits: int = 1) -> tuple[str, str]:
    """Return two numbers with as many digits as it takes to see which is larger, 12 at most.

    >>> _apart(Fraction("11.2004"), Fraction("11.2"))
    ('11.2004', '11.2000')
    """
    for num in range(digits, 13):
        shown = tuple(f"{Decimal(round(x * 10**num)).scaleb(-num):,.{num}f}" for x in (one, other))
        if one == other or shown[0] != shown[1]:
            return shown
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A promise to users: seconds to the first token, and mean seconds a further token."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise BadInput(f"{name} is {value}", f"set {name} to seconds above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests within the promise: their number, share of all, and rate over the makespan."""

    slo: Slo
    requests: int
    share: float
    requests_per_s: float


def goodput(run: Run, slo: Slo) -> Goodput:
    """Return the goodput of a run. A reply cut by its maximum counts for nothing.

    A reply of one token has no further token to be late.
    """
    good = run.requests.filter(
        (pl.col("outcome") == "finished")
        & ~pl.col("truncated")
        & (pl.col("ttft_s") <= slo.ttft_s)
        & (pl.col("tpot_s").fill_null(0.0) <= slo.tpot_s)
    ).height
    makespan_s = run.executor.rounds.end_ps / 1e12
    total = max(1, run.counts["submitted"])
    return Goodput(
        slo=slo,
        requests=good,
        share=good / total,
        requests_per_s=good / makespan_s if makespan_s else 0.0,
    )


def longest_alone_ps(run: Run, ran: Sequence[RequestRecord], above_ps: int) -> int:
    """Return the longest solo E2E of the requests that `ran`, 0 without any.

    Prefill and decode follow from the lengths. The copies of growing and of captures follow from
    the layout, so where there are any, and the answer would be below `above_ps`, the longest three
    and the last to end are replayed alone.
    """
    if not ran:
        return 0
    prompts = np.array([r.prompt_tokens for r in ran], dtype=object)
    outputs = np.array([max(1, r.produced) for r in ran], dtype=object)
    lengths = solo_e2e_ps(run.cost, prompts, outputs, run.settings.budget_tokens)
    longest_ps = int(lengths.max())
    copies = run.layout.grows or run.settings.prefix_bytes > 0
    if longest_ps >= above_ps or not copies:
        return longest_ps
    chosen = [ran[i] for i in np.argsort(-lengths, kind="stable")[:REPLAYED]]
    chosen.append(max(ran, key=lambda r: r.end_ps))
    return max(longest_ps, *(alone_ps(run, record) for record in chosen))


def alone_ps(run: Run, record: RequestRecord) -> int:
    """Return picoseconds from arrival to end of a request on an idle engine, nothing cached."""
    executor = CostExecutor([(0, record.ask, max(1, record.produced))], run.cost, run.size)
    drive(scheduler_for(run.layout, run.size, run.settings), executor)
    return executor.records[record.id].end_ps
