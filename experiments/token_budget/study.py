"""Does one law say what a prefill budget does to a running stream? Put to published series."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from qwisp.cost import load_cost
from qwisp.cost.model import PS_PER_S
from qwisp.receipts import Measured, Receipt, ReceiptBook
from qwisp.sim.stall_law import StallLaw
from qwisp.sim.stalls import idle_first_token_s, replayed_stalls
from qwisp.study import Criterion, Study

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
SERIES: list[dict[str, Any]] = PUBLISHED["series"]
FIRST_TOKEN: dict[str, Any] = PUBLISHED["first_token"]
INSTRUMENT = "scheduler and simulator, against published figures"
CLEAN_S = 0.1  # a gap without prefill took 12 to 23 ms, the shortest stall 200 ms


def measure(book: ReceiptBook) -> None:
    """Replay every published series and store its stalls, then each error against what was read."""
    cost = load_cost(PUBLISHED["model"], PUBLISHED["machine"])
    calibration = {
        "calibration": cost.name,
        "round_ps": cost.round_ps,
        "chunk_ps": cost.chunk_ps,
        "token_ps": cost.token_ps,
        "depth_ps": cost.depth_ps,
    }

    def once(metric: str, inputs: dict[str, Any], value: Any, unit: str) -> None:
        measured = Measured(value, unit, INSTRUMENT)
        book.once(metric, inputs | calibration, lambda: measured, model=PUBLISHED["model"])

    for series in SERIES:
        stalls_s = _stalls_s(cost, series)
        once("stalls", series, stalls_s, "s")
        once("k_error", series, abs(len(stalls_s) - series["k"]), "rounds")
        length = "12k" if series["prompt_tokens"] < 20_000 else "24k"
        if not series["fitted"]:
            error = abs(max(stalls_s) / series["worst_s"] - 1)
            once(f"worst_error_{length}", series, round(error, 6), "")
            error = abs(sum(stalls_s) / series["sum_s"] - 1)
            once(f"sum_error_{length}", series, round(error, 6), "")
        once("law_breaks", series, _law_breaks(series), "statements")
    found_s = idle_first_token_s(
        cost, FIRST_TOKEN["prompt_tokens"], budget_tokens=FIRST_TOKEN["budget_tokens"]
    )
    once("first_token", FIRST_TOKEN, round(found_s, 6), "s")
    error = abs(found_s / FIRST_TOKEN["first_token_s"] - 1)
    once("first_token_error", FIRST_TOKEN, round(error, 6), "")


def _stalls_s(cost: Any, series: dict[str, Any]) -> list[float]:
    stalls_ps = replayed_stalls(
        cost,
        series["prompt_tokens"],
        budget_tokens=series["budget_tokens"],
        stream_tokens=series["stream_tokens"],
    )
    if not series["own_prefill_counted"]:
        stalls_ps = stalls_ps[1:]
    return [round(ps / PS_PER_S, 6) for ps in stalls_ps]


def _law_breaks(series: dict[str, Any]) -> int:
    """Return how many statements of the law the *published* figures contradict; no model in it."""
    breaks = int(series["worst_s"] * series["k"] < series["sum_s"])
    law = StallLaw(stalls_ps=(1,) * series["k"], stream_gaps=series["stream_tokens"])
    for name, percentile in (("p90_s", "0.90"), ("p99_s", "0.99")):
        if name in series:
            breaks += law.is_clean(Fraction(percentile)) != (series[name] < CLEAN_S)
    return breaks


def findings(receipts: Sequence[Receipt]) -> list[str]:
    """Return one sentence a series with every error, then what the figures do not carry."""
    said = []
    by_metric = {(r.metric, r.inputs["name"]): r for r in receipts}
    for series in SERIES:
        receipt = by_metric.get(("stalls", series["name"]))
        if receipt is None:
            continue
        stalls_s = receipt.value
        fitted = "fitted" if series["fitted"] else "predicted"
        worst = _pair(max(stalls_s), series["worst_s"])
        total = _pair(sum(stalls_s), series["sum_s"])
        rounds = f"k {len(stalls_s)}, published {series['k']}"
        said.append(f"{series['name']} ({fitted}): {rounds}; worst {worst}; sum {total}")
    first = by_metric.get(("first_token", FIRST_TOKEN["name"]))
    if first is not None:
        pair = _pair(first.value, FIRST_TOKEN["first_token_s"])
        said.append(f"First token, {FIRST_TOKEN['name']} (predicted): {pair}")
    return [*said, *CAVEATS]


def _pair(found_s: float, published_s: float) -> str:
    return f"{found_s:.2f} s against {published_s:g} s ({found_s / published_s - 1:+.1%})"


CAVEATS = (
    "Single stalls are further off than worst and sum: the second and third full chunk took as "
    "long as the first (2.6 s, fitted up to +9 %), and the short last chunk (313 tokens, 2.1 s) "
    "is fitted at 1.6 s. It costs as if padded to a whole chunk; the stream's own short prompt "
    "(0.2 s) does not. Four coefficients cannot hold both.",
    "The cost per chunk comes out as 0 because no series varies it on its own. Whether a chunk "
    "costs something beyond its tokens is open.",
    "The 24K stalls are slower than predicted (sum) and the 30.8K prompt is faster: the two were "
    "measured on different builds, so one calibration meets neither level exactly.",
)

study = Study(
    id="token_budget",
    question=(
        "Does the stall law, with four coefficients fitted on two published series, say what a "
        "prefill budget does to a running stream, well enough to choose a budget by it?"
    ),
    criteria=[
        Criterion(
            "rounds",
            "k_error",
            0,
            "above",
            "k is counted, not fitted: one round off means that the scheduler is another one",
            reduce="max",
            num_receipts=7,
            unit="rounds",
        ),
        Criterion(
            "statements",
            "law_breaks",
            0,
            "above",
            "worst >= S / k, and a percentile is clean exactly when k / L < 1 - p, must hold for "
            "the published figures themselves",
            reduce="max",
            num_receipts=7,
            unit="statements",
        ),
        Criterion(
            "worst stall, 12K",
            "worst_error_12k",
            0.05,
            "above",
            "neighbouring budgets differ by a factor of at least 1.4 in the worst stall; 5 % "
            "cannot swap them",
            reduce="max",
            num_receipts=3,
        ),
        Criterion(
            "sum of stalls, 12K",
            "sum_error_12k",
            0.04,
            "above",
            "what is conserved differs by 9 % between the budgets; the prediction has to be finer",
            reduce="max",
            num_receipts=3,
        ),
        Criterion(
            "worst stall, 24K",
            "worst_error_24k",
            0.05,
            "above",
            "twice the prompt was never fitted: the term in depth must carry over",
            reduce="max",
            num_receipts=2,
        ),
        Criterion(
            "first token, 30.8K",
            "first_token_error",
            0.20,
            "above",
            "three times the prompt, on an idle engine, in another run: a check that the level "
            "holds, not a fine one",
        ),
    ],
    protocol=(
        "The cost of a round, a chunk, a token and a token per row of depth are fitted on the "
        "1,024 and the budget-0 series of the 12K prompt (figures and residuals in the calibration "
        "of the pair). A stream and its neighbour are then replayed through the scheduler for "
        "every published series, one round at a time, and k, worst and sum are compared. The "
        "published 12K lists count the stream's own short prefill; the 24K list does not."
    ),
    measure=measure,
    findings=findings,
)
