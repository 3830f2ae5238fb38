"""A run as trace events, which chrome://tracing and Perfetto open: a row a session."""

from __future__ import annotations

import json
from pathlib import Path

from qwisp.errors import BadInput
from qwisp.sim.run import Run


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
