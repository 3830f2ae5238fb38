"""One row a request, from the simulator's records. Integers become seconds here, once."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from qwisp.scheduling.contract import Admitted
from qwisp.sim.record import RoundTable

if TYPE_CHECKING:
    from qwisp.sim.run import Run

PS = 1e12
TIMES = (
    "arrival_ps",
    "admitted_ps",
    "first_ps",
    "end_ps",
    "paused_ps",
    "longest_pause_ps",
    "held_row_ps",
)
COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "produced", "moves", "pauses")
FIELDS = ("id", *TIMES, *COUNTS, "outcome", "reason", "truncated", "path")


def requests_frame(run: Run) -> pl.DataFrame:
    """Return one row a request, in order of arrival; null where something never happened.

    `queue_s` arrival to admission, `ttft_s` arrival to first token, `tpot_s` mean seconds a further
    token, `e2e_s` arrival to end, of finished requests alone. `worst_stall_s` is the longest gap
    between two tokens, `stalled_s` the sum of rounds that also prefilled and `stall_rounds` (k)
    their number. `passed` counts the later requests that went first. `held_row_s` is rows held
    times seconds; `slots` names the sessions it held in turn, like `4>1`.
    """
    records = run.executor.records.values()
    column = {name: list(map(attrgetter(name), records)) for name in FIELDS}
    times = {name: np.array(column[name], dtype=np.float64) for name in TIMES}
    arrival, admitted, first, end, paused, pause, held = (ps / PS for ps in times.values())
    produced = np.array(column["produced"], dtype=np.int64)
    worst, stalled, stall_rounds = _stalls(run.executor.rounds, times["first_ps"], times["end_ps"])
    answered = first >= 0
    finished = np.array([outcome == "finished" for outcome in column["outcome"]], dtype=bool)
    several = answered & (produced > 1)
    tpot = (end - first) / np.maximum(produced - 1, 1)
    never = Admitted(0, 0, "", 0)
    admits = dict(run.scheduler.told("admit"))
    admits = [admits.get(request_id, never) for request_id in column["id"]]
    return pl.DataFrame(
        {
            "id": column["id"],
            "arrival_s": arrival,
            "prompt_tokens": column["prompt_tokens"],
            "cached_tokens": column["cached_tokens"],
            "output_tokens": column["output_tokens"],
            "produced_tokens": produced,
            "outcome": column["outcome"],
            "reason": column["reason"],
            "truncated": column["truncated"],
            "queue_s": _where(admitted >= 0, admitted - arrival),
            "waited_for": [admit.waited_for or None for admit in admits],
            "passed": [admit.passed for admit in admits],
            "ttft_s": _where(answered, first - arrival),
            "tpot_s": _where(several, tpot),
            "e2e_s": _where(finished, end - arrival),
            "worst_stall_s": _where(several, np.maximum(worst, pause)),
            "stalled_s": _where(answered, stalled),
            "stall_rounds": stall_rounds,
            "moves": column["moves"],
            "pauses": column["pauses"],
            "paused_s": paused,
            "held_row_s": held,
            "slots": column["path"],
        },
        schema_overrides={"slots": pl.String, "waited_for": pl.String},
    )


def _where(mask: np.ndarray, values: np.ndarray) -> pl.Series:
    return pl.Series(np.where(mask, values, np.nan)).fill_nan(None)


def _stalls(
    rounds: RoundTable, first_ps: np.ndarray, end_ps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per request: longest round, summed rounds with prefill, their number."""
    columns = rounds.columns()
    run_end, prefilled = columns["end_ps"].astype(np.float64), columns["grants_ps"] > 0
    begin = columns["begin_ps"].astype(np.float64)
    low = np.searchsorted(run_end, first_ps, side="right")
    high = np.maximum(np.searchsorted(run_end, end_ps, side="right"), low)
    worst = _range_max(columns["last_ps"].astype(np.float64), low, high)
    spent = np.concatenate([[0.0], np.cumsum(np.where(prefilled, run_end - begin, 0.0))])
    counts = np.where(prefilled, columns["rounds"].astype(np.int64), 0)
    number = np.concatenate([[0], np.cumsum(counts)])
    return worst / PS, (spent[high] - spent[low]) / PS, number[high] - number[low]


def _range_max(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the maximum of `values[low:high]` for each pair, 0 for an empty range.

    Two overlapping windows of one power of two cover any range; `table` holds their maxima.
    """
    result = np.zeros(len(low))
    if not len(values):
        return result
    length, table, width = high - low, values, 1
    while True:
        at = (width <= length) & (length < 2 * width)
        result[at] = np.maximum(table[low[at]], table[high[at] - width])
        if 2 * width > len(values):
            return result
        table = np.maximum(table[:-width], table[width:])
        width *= 2
