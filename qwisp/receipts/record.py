"""One receipt, its line of JSON, and a file of them read back. A torn last line is no error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from qwisp.errors import BadInput

SCHEMA = 1
Json = bool | int | float | str | None | list[Any] | dict[str, Any]


class Measured(NamedTuple):
    """What a probe returns: the value (any JSON), its unit, and what read it."""

    value: Json
    unit: str
    instrument: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One measurement and everything needed to judge or repeat it.

    `metric` says what was measured, `inputs` under which settings; `inputs_hash` covers both and
    model, seed and study, so that an equal hash means: already measured. `started_s` and `ended_s`
    are seconds since 1970.
    """

    metric: str
    inputs: Mapping[str, Json]
    inputs_hash: str
    value: Json
    unit: str
    instrument: str
    started_s: float
    ended_s: float
    machine: Mapping[str, str]
    packages: Mapping[str, str]
    commit: str
    is_dirty: bool
    study: str = ""
    criteria_hash: str = ""
    model: str = ""
    model_hash: str = ""
    seed: int | None = None
    schema: int = SCHEMA

    @property
    def id(self) -> str:
        """A short name to cite in a report."""
        return self.inputs_hash[:12]


class Receipts(NamedTuple):
    """The receipts of a file in order. `torn`: what a killed writer left of its last line."""

    all: tuple[Receipt, ...]
    torn: str = ""


_NAMES = tuple(field.name for field in fields(Receipt))
_TYPES: dict[str, tuple[type, ...]] = {
    "metric": (str,),
    "inputs": (dict,),
    "inputs_hash": (str,),
    "unit": (str,),
    "instrument": (str,),
    "started_s": (int, float),
    "ended_s": (int, float),
    "machine": (dict,),
    "packages": (dict,),
    "commit": (str,),
    "is_dirty": (bool,),
    "study": (str,),
    "criteria_hash": (str,),
    "model": (str,),
    "model_hash": (str,),
    "seed": (int, type(None)),
}


def canonical(value: object) -> str:
    """Return the one JSON text of `value` that is hashed. Raises `BadInput` for what JSON lacks."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        what = f"a receipt cannot hold {str(value)[:80]!r}: {error}"
        raise BadInput(what, "give numbers, texts, lists and objects of these") from None


def hash_inputs(value: object) -> str:
    """Return the SHA-256 of `value` as canonical JSON, 64 hex digits.

    >>> hash_inputs({"a": 1, "b": 2}) == hash_inputs({"b": 2, "a": 1})
    True
    """
    return sha256(canonical(value).encode()).hexdigest()


def hash_of(receipt: Receipt) -> str:
    """Return the hash of what was measured, under which settings, on which model."""
    who = (receipt.model, receipt.model_hash, receipt.seed)
    return hash_inputs([receipt.study, receipt.metric, dict(receipt.inputs), *who])


def to_line(receipt: Receipt) -> str:
    """Return the receipt's line, without its newline."""
    return canonical({"schema": receipt.schema} | asdict(receipt))


def read_receipts(path: str | Path) -> Receipts:
    """Return all receipts of a file; none if the file does not exist.

    Raises `BadInput` with the line for anything that is not a receipt. Only the last line may be
    torn: one without a newline is taken if it is whole, else reported as `torn`.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return Receipts(())
    except OSError as error:
        raise BadInput(f"receipts {path}: {error.strerror}", "check the path") from None
    return parse_receipts(data, str(path))


def parse_receipts(data: bytes, name: str) -> Receipts:
    """Return the receipts of a file's content; else as `read_receipts`."""
    *whole, last = data.split(b"\n")
    receipts = []
    for number, line in enumerate(whole, 1):
        if line.strip():
            receipts.append(_receipt(line, f"{name}: line {number}"))
    if not last.strip():
        return Receipts(tuple(receipts))
    try:
        return Receipts((*receipts, _receipt(last, name)))
    except BadInput:
        return Receipts(tuple(receipts), last.decode("utf-8", "replace"))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _receipt(line: bytes, where: str) -> Receipt:
    todo = "remove or restore the line: receipts are only ever appended"
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not a receipt: {error}", todo) from None
    if not isinstance(record, dict):
        raise BadInput(f"{where} is not a receipt: not an object", todo)
    if record.get("schema") != SCHEMA:
        what = f"{where} has schema {str(record.get('schema'))[:20]!r}, this qwisp reads {SCHEMA}"
        raise BadInput(what, "read it with the version of qwisp that wrote it")
    for key, types in _TYPES.items():
        value = record.get(key)
        if key not in record or not isinstance(value, types) or type(value) is bool not in types:
            raise BadInput(f"{where}: {key} is {str(value)[:40]!r}", todo)
    if unknown := sorted(record.keys() - set(_NAMES)):
        raise BadInput(f"{where}: unknown key {unknown[0]!r}", todo)
    if "value" not in record:
        raise BadInput(f"{where}: value is missing", todo)
    receipt = Receipt(**record)
    if receipt.inputs_hash != hash_of(receipt):
        raise BadInput(f"{where} was edited: its inputs do not give its inputs_hash", todo)
    return receipt
