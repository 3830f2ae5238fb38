"""One row a request, from the simulator's records. Integers become seconds here, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from qwisp.sim.record import RoundTable

if TYPE_CHECKING:
    from qwisp.sim.run import Run

PS = 1e12


def requests_frame(run: Run) -> pl.DataFrame:
    """Return one row a request, in order of arrival; null where something never happened.

    `queue_s` arrival to admission, `ttft_s` arrival to first token, `tpot_s` mean seconds a further
    token, `e2e_s` arrival to end. `worst_stall_s` is the longest gap between two tokens,
    `stalled_s` the sum of rounds that also prefilled and `stall_rounds` (k) their number. `passed`
    counts the later requests that went first. `held_row_s` is rows held times seconds; `slots`
    names the sessions it held in turn, like `4>1`.
    """
    records = list(run.executor.records.values())
    columns = {
        name: np.array([getattr(r, name) for r in records], dtype=np.float64)
        for name in ("arrival_ps", "admitted_ps", "first_ps", "end_ps", "paused_ps")
    }
    arrival, admitted, first, end, paused = (column / PS for column in columns.values())
    produced = np.array([r.produced for r in records], dtype=np.int64)
    worst, stalled, stall_rounds = _stalls(
        run.executor.rounds, columns["first_ps"], columns["end_ps"]
    )
    pause = np.array([r.longest_pause_ps for r in records], dtype=np.float64) / PS
    started, answered = columns["admitted_ps"] >= 0, columns["first_ps"] >= 0
    several = answered & (produced > 1)
    tpot = (end - first) / np.maximum(produced - 1, 1)
    waited = {e[3]: e[4][2] for e in run.scheduler._log if e[2] == "admit" and e[4][2]}
    passed = {e[3]: e[4][3] for e in run.scheduler._log if e[2] == "admit" and e[4][3]}
    frame = pl.DataFrame(
        {
            "id": [r.id for r in records],
            "arrival_s": arrival,
            "prompt_tokens": [r.prompt_tokens for r in records],
            "cached_tokens": [r.cached_tokens for r in records],
            "output_tokens": [r.output_tokens for r in records],
            "produced_tokens": produced,
            "outcome": [r.outcome for r in records],
            "reason": [r.reason for r in records],
            "truncated": [r.truncated for r in records],
            "queue_s": _where(started, admitted - arrival),
            "waited_for": [waited.get(r.id) for r in records],
            "passed": [passed.get(r.id, 0) for r in records],
            "ttft_s": _where(answered, first - arrival),
            "tpot_s": _where(several, tpot),
            "e2e_s": _where(columns["end_ps"] >= 0, end - arrival),
            "worst_stall_s": _where(several, np.maximum(worst, pause)),
            "stalled_s": _where(answered, stalled),
            "stall_rounds": stall_rounds,
            "moves": [r.moves for r in records],
            "pauses": [r.pauses for r in records],
            "paused_s": paused,
            "held_row_s": np.array([r.held_row_ps for r in records], dtype=np.float64) / PS,
            "slots": [r.path for r in records],
        },
        schema_overrides={"slots": pl.String, "waited_for": pl.String},
    )
    return frame


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

    A sparse table: two overlapping power-of-two windows cover any range.
    """
    result = np.zeros(len(low))
    if not len(values):
        return result
    tables, width = [values], 1
    while width * 2 <= len(values):
        tables.append(np.maximum(tables[-1][:-width], tables[-1][width:]))
        width *= 2
    length = high - low
    level = np.frexp(np.maximum(length, 1))[1] - 1
    for k in np.unique(level[length > 0]):
        at = (level == k) & (length > 0)
        table, size = tables[k], 1 << int(k)
        result[at] = np.maximum(table[low[at]], table[high[at] - size])
    return result
