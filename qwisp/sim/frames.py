"""A run as frames: one row a request, rounds, stretches in a session, load over time.

Integers become seconds here, once. The stretches also make a trace-event file: a row a session.
"""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from qwisp.errors import BadInput
from qwisp.scheduling.arena_rows import rows_bytes
from qwisp.scheduling.contract import SETTLE, Admitted
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
PHASES = ("prefill", "decode", "paused")
_OPENS = {"admit": "prefill", "decode": "decode", "move": "", "resume": "decode", "pause": "paused"}
_CLOSES = ("finished", "failed", "cancelled")
_MANY_ROWS = 2**20  # whole pools, so that a pooled row is shared exactly


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


def rounds_frame(run: Run) -> pl.DataFrame:
    """Return one row a run of equal rounds: first index, start, count, decoders, durations."""
    columns = run.executor.rounds.columns()
    return pl.DataFrame(
        {
            "round": columns["index"],
            "begin_s": columns["begin_ps"] / PS,
            "end_s": columns["end_ps"] / PS,
            "rounds": columns["rounds"],
            "decoding": columns["width"],
            "used_rows": columns["used_rows"],
            "prefill_s": columns["grants_ps"] / PS,
            "last_round_s": columns["last_ps"] / PS,
        }
    )


def segments_frame(run: Run) -> pl.DataFrame:
    """Return one row a stretch: stream `id` in `slot` in one phase, from `begin_s` to `end_s`.

    `begin_tokens` and `end_tokens` are the rows it uses at both ends; a new stretch starts at every
    admission, first decode, move, pause and resume.
    """
    entries = [e for e in run.log if e.kind in _OPENS or e.kind in _CLOSES]
    times = _times(run, entries)
    open_: dict[int, list] = {}
    rows: list[tuple] = []
    records = run.executor.records
    for entry, at_s in zip(entries, times.tolist(), strict=True):
        current = open_.pop(entry.id, None)
        if current is not None:
            slot, phase, begin_s = current
            rows.append((entry.id, slot, phase, begin_s, at_s))
        if entry.kind in _CLOSES:
            continue
        slot = (current[0] if current else -1) if entry.kind == "decode" else entry.what.slot
        phase = _OPENS[entry.kind] or (current[1] if current else "decode")
        open_[entry.id] = [slot, phase, at_s]
    frame = pl.DataFrame(
        rows, schema=["id", "slot", "phase", "begin_s", "end_s"], orient="row"
    ).cast({"id": pl.Int64, "slot": pl.Int64, "phase": pl.String})
    frame = frame.cast({"begin_s": pl.Float64, "end_s": pl.Float64})
    return _with_tokens(frame, records)


def _times(run: Run, entries: list) -> np.ndarray:
    """Return seconds of log entries: first tokens and settlements come as their round ends."""
    columns = run.executor.rounds.columns()
    index, begin, end = columns["index"], columns["begin_ps"], columns["end_ps"]
    at = np.searchsorted(index, np.array([e.round for e in entries], np.int64), side="right") - 1
    settled = np.array([e.phase == SETTLE or e.kind == "decode" for e in entries])
    return np.where(settled, end[at], begin[at]) / PS if len(entries) else np.zeros(0)


def _with_tokens(frame: pl.DataFrame, records: dict) -> pl.DataFrame:
    """Add the rows used at both ends: prefill fills the prompt, decode spreads its tokens."""
    prompts = {i: r.prompt_tokens for i, r in records.items()}
    produced = {i: r.produced for i, r in records.items()}
    frame = frame.with_columns(
        prompt=pl.col("id").replace_strict(prompts, return_dtype=pl.Int64),
        produced=pl.col("id").replace_strict(produced, return_dtype=pl.Int64),
        decoding_s=pl.when(pl.col("phase") == "decode")
        .then(pl.col("end_s") - pl.col("begin_s"))
        .otherwise(0.0),
    )
    after = pl.col("decoding_s").cum_sum().over("id")
    total = pl.col("decoding_s").sum().over("id")
    share = pl.when(total > 0).then(pl.col("produced") / total).otherwise(0.0)
    is_prefill = pl.col("phase") == "prefill"
    return frame.with_columns(
        begin_tokens=pl.when(is_prefill)
        .then(0.0)
        .otherwise(pl.col("prompt") + (after - pl.col("decoding_s")) * share),
        end_tokens=pl.col("prompt") + after * share,
    ).select("id", "slot", "phase", "begin_s", "end_s", "begin_tokens", "end_tokens")


def load_frame(run: Run) -> pl.DataFrame:
    """Return the state after every change: waiting, prefilling, decoding, paused; bytes.

    `allocated_bytes` is the layout, `held_bytes` the occupied places, `used_bytes` the rows that
    streams really use there (linear between changes) with their state and rings, `wasted_bytes`
    held less used.
    """
    segments, requests = run.segments, run.requests
    rows_of = _rows_of(run)
    begin = segments["begin_s"].to_numpy()
    end = segments["end_s"].to_numpy()
    slope = (segments["end_tokens"] - segments["begin_tokens"]).to_numpy()
    slope = np.divide(slope, end - begin, out=np.zeros_like(slope), where=end > begin)
    offset = segments["begin_tokens"].to_numpy() - slope * begin
    held = np.array([rows_of(s, i) for s, i in segments.select("slot", "id").iter_rows()], float)
    arrival = requests["arrival_s"].to_numpy()
    # A request leaves the line when it is admitted, or when it ends without ever running.
    records = run.executor.records.values()
    leaves_ps = [r.end_ps if r.admitted_ps < 0 else r.admitted_ps for r in records]
    leaves = np.array(leaves_ps, dtype=np.float64) / PS
    phase = segments["phase"].to_numpy()
    time = np.unique(np.concatenate([begin, end, arrival, leaves]))

    def active(starts: np.ndarray, stops: np.ndarray, weight: np.ndarray | None = None):
        weight = np.ones(len(starts)) if weight is None else weight
        change = np.zeros(len(time))
        np.add.at(change, np.searchsorted(time, starts), weight)
        np.add.at(change, np.searchsorted(time, stops), -weight)
        return np.cumsum(change)

    used = active(begin, end, offset) + active(begin, end, slope) * time
    row_bytes = rows_bytes(run.size, _MANY_ROWS) / _MANY_ROWS
    # State and ring are there as soon as a stream is, whatever its length.
    slot_rows = run.layout.arena(run.size).slot_rows
    own_bytes = {rows: run.size.lane_bytes(rows) for rows in set(slot_rows)}
    own = active(begin, end, np.array([own_bytes[slot_rows[s]] for s in segments["slot"]], float))
    held_bytes = active(begin, end, held) * row_bytes + own
    used_bytes = np.clip(used, 0, None) * row_bytes + own
    counts = {p: active(begin[phase == p], end[phase == p]).astype(int) for p in PHASES}
    return pl.DataFrame(
        {
            "time_s": time,
            "waiting": active(arrival, leaves).astype(int),
            **counts,
            "allocated_bytes": np.full(len(time), float(run.layout.num_bytes(run.size))),
            "held_bytes": held_bytes,
            "used_bytes": np.minimum(used_bytes, held_bytes),
        }
    ).with_columns(wasted_bytes=pl.col("held_bytes") - pl.col("used_bytes"))


def _rows_of(run: Run):
    if run.layout.kind == "per_request":
        rows = {i: r.held_rows for i, r in run.executor.records.items()}
        return lambda slot, request_id: rows[request_id]
    sessions = [context + run.layout.margin_rows for context in run.layout.contexts]
    return lambda slot, request_id: sessions[slot]


def chrome_trace(run: Run) -> dict:
    """Return the trace-event document: one complete event a stretch, times in microseconds."""
    events = [
        {
            "name": f"{request_id} {phase}",
            "cat": phase,
            "ph": "X",
            "pid": 1,
            "tid": slot,
            "ts": begin_s * 1e6,
            "dur": (end_s - begin_s) * 1e6,
            "args": {"request": request_id},
        }
        for request_id, slot, phase, begin_s, end_s in run.segments.select(
            "id", "slot", "phase", "begin_s", "end_s"
        ).iter_rows()
    ]
    names = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 1,
            "tid": slot,
            "args": {"name": f"session {slot + 1}: {context:,} tokens"},
        }
        for slot, context in enumerate(run.layout.contexts)
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def write_chrome_trace(run: Run, path: Path) -> None:
    """Write the trace-event file. Raises `BadInput` where it cannot be written."""
    try:
        path.write_text(json.dumps(chrome_trace(run)), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}", "give another path") from None
