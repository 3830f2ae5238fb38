"""A run over time: rounds, what each session held, how much waited and how much was used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from qwisp.scheduling.arena_rows import rows_bytes
from qwisp.scheduling.contract import SETTLE

if TYPE_CHECKING:
    from qwisp.sim.run import Run

PS = 1e12
PHASES = ("prefill", "decode", "paused")
_MANY_ROWS = 2**20  # whole pools, so that a pooled row is shared exactly


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


_OPENS = {"admit": "prefill", "decode": "decode", "move": "", "resume": "decode", "pause": "paused"}
_CLOSES = ("finished", "failed", "cancelled")


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
