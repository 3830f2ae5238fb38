"""What happened in a real run, as JSONL: a header, then asks, cancels, stops and failures.

`{"schema", "layout", "W", "C", "budget", "order"}`, then lines `{"round", "time_s", "kind", ...}`:
`ask` with `id, prompt_tokens, max_new, prefix, priority, message_tokens`; `cancel` and `stop` with
`id`; `fail` with `reason` and `position`, or with `op` and `id` in its place; `extra` with `id` and
`tokens`, where a decoder did not yield exactly one token a round. Any engine that writes such a
file can be checked by replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from qwisp.errors import BadInput, BadTrace
from qwisp.trace.clock_text import NS_PER_S, scaled_ns
from qwisp.trace.collect import BadCell
from qwisp.trace.records import objects, prefix_ids, whole
from qwisp.trace.source import read_bytes

SCHEMA = "qwisp-facts-1"
OPS = ("Resume", "Move", "Pause", "Admit", "Restore", "Grant", "Capture", "decode")
_HEADER_KEYS = ("schema", "layout", "W", "C", "budget", "order")


class FactsHeader(NamedTuple):
    """The settings of the run.

    `extra` keeps further settings of the writer, sorted by name. `width` is the fixed decode width
    W, `chunk_tokens` the legal prefill chunk C, `budget_tokens` the prefill budget of a round.
    """

    layout: str
    width: int
    chunk_tokens: int
    budget_tokens: int
    order: str
    extra: tuple[tuple[str, Any], ...] = ()

    def told(self, key: str, default: Any = None, kind: type = int) -> Any:
        """Return what a further key says: a whole number, or text for `str`. Raises `BadTrace`."""
        value = dict(self.extra).get(key, default)
        is_one = type(value) is kind and (kind is str or 0 <= value < 2**63)
        if value is not default and not is_one:
            what = "text" if kind is str else "a whole number from 0 to 2^63 - 1"
            raise self.bad(key, value, what)
        return value

    def bad(self, key: str, value: object, what: str) -> BadTrace:
        """Return the error for a key that is not `what`."""
        said = f"facts: line 1, column {key}: {str(value)[:40]!r} is not {what}"
        return BadTrace(said, "correct the header", 1, key)


class AskRecord(NamedTuple):
    """A request arrived: the scheduler could know it from `round` on."""

    round: int
    time_ns: int
    id: int
    prompt_tokens: int
    max_new: int | None = None
    prefix: tuple[int, ...] = ()
    priority: int = 0
    message_tokens: int = 0


class CancelRecord(NamedTuple):
    """The client of `id` went away."""

    round: int
    time_ns: int
    id: int


class StopRecord(NamedTuple):
    """The reply of `id` ended by itself; `round` is the one in which this was reported."""

    round: int
    time_ns: int
    id: int


class FailRecord(NamedTuple):
    """An operation failed: that at `position` of the round (as in `Outcome.failed`), or by name.

    `op` is the kind of operation (one of `OPS`) and `id` whose; then `position` is None. Names are
    safer: positions shift when a refusal is told one round later.
    """

    round: int
    time_ns: int
    position: int | None
    reason: str
    op: str | None = None
    id: int | None = None


class ExtraRecord(NamedTuple):
    """`id` yielded `tokens` more (drafts), or fewer, than one a round up to this round.

    0 says of a stream whose decode fails in this round that drafts made up for it: without a record
    it yielded nothing in it.
    """

    round: int
    time_ns: int
    id: int
    tokens: int


FactRecord = AskRecord | CancelRecord | StopRecord | FailRecord | ExtraRecord
_KINDS = {
    AskRecord: "ask",
    CancelRecord: "cancel",
    StopRecord: "stop",
    FailRecord: "fail",
    ExtraRecord: "extra",
}


def read_facts(path: str | Path) -> tuple[FactsHeader, tuple[FactRecord, ...]]:
    """Return header and records of a facts file. Raises `BadInput`, `BadTrace` (line, column)."""
    return parse_facts(read_bytes(path, "facts file"), Path(path).name)


def parse_facts(data: bytes, name: str = "facts") -> tuple[FactsHeader, tuple[FactRecord, ...]]:
    """Return header and records of facts given as bytes. Raises `BadTrace`."""
    header: FactsHeader | None = None
    records: list[FactRecord] = []
    ids: set[int] = set()
    for line, value in objects(data):
        try:
            if isinstance(value, BadCell):
                raise value
            if header is None:
                header = _header(value)
                continue
            record = _record(value)
            if records and record.round < records[-1].round:
                raise BadCell("round", f"round {record.round} after round {records[-1].round}")
            if isinstance(record, AskRecord):
                if record.id in ids:
                    raise BadCell("id", f"request {record.id} arrives twice")
                ids.add(record.id)
            elif record.id is not None and record.id not in ids:
                raise BadCell("id", f"request {record.id} has not arrived yet")
            records.append(record)
        except BadCell as cell:
            what = f"{name}: line {line}, column {cell.column}: {cell.what}"
            raise BadTrace(what, "correct the line", line, cell.column) from None
    if header is None:
        raise BadTrace(f"{name}: line 1: no header", f"start with {', '.join(_HEADER_KEYS)}", 1, 1)
    return header, tuple(records)


def _text(value: dict[str, Any], key: str) -> str:
    if not isinstance(value.get(key), str):
        raise BadCell(key, f"{str(value.get(key))[:40]!r} is not text")
    return value[key]


def _header(value: dict[str, Any]) -> FactsHeader:
    if value.get("schema") != SCHEMA:
        raise BadCell("schema", f"{str(value.get('schema'))[:40]!r} is not {SCHEMA!r}")
    extra = tuple(sorted((k, v) for k, v in value.items() if k not in _HEADER_KEYS))
    return FactsHeader(
        layout=_text(value, "layout"),
        width=_at_least(value, "W", 1),
        chunk_tokens=_at_least(value, "C", 1),
        budget_tokens=_at_least(value, "budget", 0),
        order=_text(value, "order"),
        extra=extra,
    )


def _at_least(value: dict[str, Any], key: str, lowest: int) -> int:
    number = whole(value, key)
    if not lowest <= number < 2**63:
        raise BadCell(key, f"{number} is below {lowest} or above 2^63 - 1")
    return number


def _record(value: dict[str, Any]) -> FactRecord:
    round, time_ns = _at_least(value, "round", 0), _time_ns(value.get("time_s"))
    match value.get("kind"):
        case "ask":
            return AskRecord(
                round,
                time_ns,
                _at_least(value, "id", 0),
                _at_least(value, "prompt_tokens", 1),
                None if value.get("max_new") is None else _at_least(value, "max_new", 1),
                prefix_ids(value, "prefix"),
                whole(value, "priority") if "priority" in value else 0,
                _at_least(value, "message_tokens", 0) if "message_tokens" in value else 0,
            )
        case "cancel":
            return CancelRecord(round, time_ns, _at_least(value, "id", 0))
        case "stop":
            return StopRecord(round, time_ns, _at_least(value, "id", 0))
        case "fail":
            reason = _text(value, "reason")
            if "op" not in value:
                return FailRecord(round, time_ns, _at_least(value, "position", 0), reason)
            if value["op"] not in OPS:
                raise BadCell("op", f"{str(value['op'])[:40]!r} is none of {', '.join(OPS)}")
            return FailRecord(round, time_ns, None, reason, value["op"], _at_least(value, "id", 0))
        case "extra":
            return ExtraRecord(round, time_ns, _at_least(value, "id", 0), whole(value, "tokens"))
        case other:
            raise BadCell("kind", f"{str(other)[:40]!r} is none of ask, cancel, stop, fail, extra")


def _time_ns(value: object) -> int:
    if type(value) not in (int, Decimal) or value < 0:  # type: ignore[operator]
        raise BadCell("time_s", f"{str(value)[:40]!r} is not a number of seconds")
    try:
        return scaled_ns(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadCell("time_s", str(error)) from None


def write_facts(path: str | Path, header: FactsHeader, records: Iterable[FactRecord]) -> None:
    """Write a facts file; `read_facts` reads it back, equal. Raises `BadInput`."""
    try:
        Path(path).write_text("".join(facts_lines(header, records)), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}", "give another path") from None


def facts_lines(header: FactsHeader, records: Iterable[FactRecord]) -> Iterable[str]:
    """Yield the lines of a facts file, each with its newline; `parse_facts` reads them back."""
    head = (SCHEMA, header.layout, *header[1:5])
    yield json.dumps(dict(zip(_HEADER_KEYS, head, strict=True)) | dict(header.extra)) + "\n"
    for record in records:
        seconds, rest_ns = divmod(record.time_ns, NS_PER_S)
        fields = record._asdict()
        del fields["time_ns"]
        if isinstance(record, FailRecord):
            fields = {key: value for key, value in fields.items() if value is not None}
        rest = json.dumps({"round": fields.pop("round"), "kind": _KINDS[type(record)], **fields})
        yield f'{{"time_s": {seconds}.{rest_ns:09d}, {rest[1:]}\n'
