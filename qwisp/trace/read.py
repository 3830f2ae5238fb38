"""Any supported trace file: the format is told from its first line, never from its name."""

from __future__ import annotations

from pathlib import Path

from qwisp.errors import BadTrace
from qwisp.trace import azure, burstgpt, jsonl, mooncake, server_log
from qwisp.trace.no_gc import no_gc
from qwisp.trace.records import RecordFormat, parse_line
from qwisp.trace.request import Trace
from qwisp.trace.source import lines, plain, read_bytes
from qwisp.trace.table import TableFormat, header_cells

# A new format is its file and its name here. A trace is read by the first that knows its keys.
FORMATS: list[TableFormat | RecordFormat] = [
    module.FORMAT for module in (azure, burstgpt, jsonl, mooncake, server_log)
]
_MAX_PROBED_LINES = 20


def read_trace(path: str | Path, *, lenient: bool = False) -> Trace:
    """Return the requests of a trace file (gzip or plain), arrivals counted from the first one.

    Formats: Azure LLM 2023 and 2024, BurstGPT v1 to v3, Mooncake, server logs, our own JSONL.
    Raises `BadInput` for no such file, `BadTrace` with line and column for a bad line; `lenient`
    skips and counts bad lines instead.
    """
    with no_gc():
        return parse_trace(read_bytes(path, todo=_todo()), Path(path).name, lenient=lenient)


def parse_trace(data: bytes, name: str = "trace", *, lenient: bool = False) -> Trace:
    """Return the requests of a trace given as bytes; else as `read_trace`.

    >>> line = b"2023-11-16 18:15:46.6805900,374,44"
    >>> parse_trace(b"TIMESTAMP,ContextTokens,GeneratedTokens\\r\\n" + line).requests
    (Request(id=0, arrival_ns=0, prompt_tokens=374, output_tokens=44, max_new=None, prefix=()),)
    """
    data = plain(data, name, todo=_todo())
    for i, (number, line) in enumerate(lines(data)):
        if line.startswith(b"{"):
            record = parse_line(line)
            if isinstance(record, dict):
                for form in FORMATS:
                    if isinstance(form, RecordFormat) and form.matches(record):
                        return form.read(data, name, lenient=lenient)
                if {"schema", "layout"} <= record.keys():
                    raise BadTrace(
                        f"{name}: line {number}: facts of a run, not a trace of requests",
                        "replay it with: qwisp replay --facts FILE",
                        number,
                        1,
                    )
            if not lenient:
                column = 1 if isinstance(record, dict) else record.column
                what = "keys of no known format" if isinstance(record, dict) else record.what
                raise _unknown(name, number, column, what)
        elif i == 0:
            header = header_cells(data)
            for form in FORMATS:
                if isinstance(form, TableFormat) and form.matches(header):
                    return form.read(data, name, lenient=lenient)
        if not lenient or i == _MAX_PROBED_LINES:
            break
    raise _unknown(name, 1, 1, "the first line belongs to no known format")


def _unknown(name: str, line: int, column: int | str, what: str) -> BadTrace:
    return BadTrace(f"{name}: line {line}, column {column}: {what}", _todo(), line, column)


def _todo() -> str:
    *others, last = (form.hint for form in FORMATS)
    return f"give a trace: {', '.join(others)} or {last}"
