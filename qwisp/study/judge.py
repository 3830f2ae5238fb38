"""The verdict, computed from receipts and from nothing else; a run measures what it lacks first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qwisp.errors import BadInput
from qwisp.receipts import (
    Measured,
    Receipt,
    ReceiptBook,
    Stamp,
    hash_inputs,
    mean,
    read_receipts,
    same_kind,
)
from qwisp.receipts.pool import number
from qwisp.study.declare import Criterion, Study

CRITERIA_METRIC = "criteria"
RECEIPTS_FILE = "receipts.jsonl"
Word = Literal["go", "no-go", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A criterion with its value (None while receipts are missing) and the receipts behind it."""

    criterion: Criterion
    value: float | None
    unit: str
    receipts: tuple[Receipt, ...]

    @property
    def outcome(self) -> Literal["passes", "kills", "missing"]:
        """What the criterion says."""
        if self.value is None:
            return "missing"
        return "kills" if self.criterion.kills(self.value) else "passes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`go`: every bar is passed; `no-go`: one kills; `undecided`: a measurement is missing."""

    study: Study
    word: Word
    why: str
    judged: tuple[Judged, ...]
    receipts: tuple[Receipt, ...]
    torn: str = ""

    @property
    def commits(self) -> tuple[str, ...]:
        """Commits of the receipts, `+` after those with uncommitted changes."""
        seen = {f"{r.commit[:12] or 'no commit'}{'+' * r.is_dirty}" for r in self.receipts}
        return tuple(sorted(seen))


def run_study(study: Study, folder: Path, *, stamp: Stamp, clock: Callable[[], float]) -> Verdict:
    """Measure what is not measured yet and return the verdict.

    Interrupted at any instant, the next run goes on with the first missing probe. Raises `BadInput`
    if the criteria have changed since the first receipt, or another run is writing.
    """
    path = folder / RECEIPTS_FILE
    with ReceiptBook(
        path, stamp=stamp, clock=clock, study=study.id, criteria_hash=study.criteria_hash
    ) as book:
        check_declared(study, book.receipts)
        declared = {
            "criteria": study.declaration,
            "question": study.question,
            "protocol": study.protocol,
        }
        if not book.receipts:
            inputs = {"criteria_hash": study.criteria_hash}
            book.once(CRITERIA_METRIC, inputs, lambda: Measured(declared, "", "declaration"))
        study.measure(book)
        return verdict_on(study, book.receipts, book.torn)


def verdict_of(study: Study, folder: Path) -> Verdict:
    """Return the verdict of a study's receipts file. Raises `BadInput` as `verdict_on` does."""
    found = read_receipts(folder / RECEIPTS_FILE)
    return verdict_on(study, found.all, found.torn)


def verdict_on(study: Study, receipts: Sequence[Receipt], torn: str = "") -> Verdict:
    """Return the verdict. Raises `BadInput` if the criteria are not those declared at the start."""
    check_declared(study, receipts)
    latest = {receipt.inputs_hash: receipt for receipt in receipts[1:]}
    measured = tuple(latest.values())
    judged = tuple(_judge(criterion, measured) for criterion in study.criteria)
    word, why = _word(judged)
    return Verdict(study=study, word=word, why=why, judged=judged, receipts=measured, torn=torn)


def check_declared(study: Study, receipts: Sequence[Receipt]) -> None:
    """Raise `BadInput` unless the first receipt, if any, declares the criteria of `study`."""
    if not receipts:
        return
    todo = "restore the criteria, or give the study a new id (and folder) and measure again"
    first = receipts[0]
    if first.metric != CRITERIA_METRIC or not isinstance(first.value, dict):
        what = f"study {study.id}: the first receipt declares no criteria but {first.metric!r}"
        raise BadInput(what, todo)
    declared = first.value.get("criteria")
    if hash_inputs([study.id, declared]) != first.criteria_hash:
        what = f"study {study.id}: the declared criteria do not have the hash declared with them"
        raise BadInput(what, todo)
    for receipt in receipts:
        if receipt.study != study.id or receipt.criteria_hash != study.criteria_hash:
            changed = _changes(declared, study) or f"receipt {receipt.id} is of another study"
            raise BadInput(
                f"study {study.id}: criteria changed after the first receipt: {changed}", todo
            )


def _changes(declared: object, study: Study) -> str:
    old = {str(c.get("name")): c for c in declared if isinstance(c, dict)} if declared else {}  # type: ignore[attr-defined]
    new = {criterion["name"]: criterion for criterion in study.declaration}
    changes = [f"{name} is new" for name in new.keys() - old.keys()]
    changes += [f"{name} is gone" for name in old.keys() - new.keys()]
    for name in new.keys() & old.keys():
        for key, value in new[name].items():
            if value != old[name].get(key):
                changes.append(f"{name}: {key} was {old[name].get(key)!r}, is {value!r}")
    return "; ".join(sorted(changes))


def _judge(criterion: Criterion, receipts: Sequence[Receipt]) -> Judged:
    mine = tuple(receipt for receipt in receipts if receipt.metric == criterion.metric)
    if len(mine) > criterion.num_receipts:
        what = f"criterion {criterion.name!r} takes {criterion.num_receipts} receipts, there are"
        todo = "a probe's inputs have changed: give the study a new id and measure again"
        raise BadInput(f"{what} {len(mine)} of {criterion.metric}", todo)
    units = sorted(
        {receipt.unit for receipt in mine} | ({criterion.unit} - {""} if mine else set())
    )
    if len(units) > 1:
        what = f"criterion {criterion.name!r} mixes the units {', '.join(units)}"
        raise BadInput(what, "measure in one unit")
    value = None
    if len(mine) == criterion.num_receipts:
        value = _reduce(criterion, mine)
    unit = units[0] if units else criterion.unit
    return Judged(criterion=criterion, value=value, unit=unit, receipts=mine)


def _reduce(criterion: Criterion, receipts: Sequence[Receipt]) -> float:
    numbers = [number(receipt) for receipt in receipts]
    match criterion.reduce:
        case "mean":
            return mean(receipts)  # refuses receipts of different models, commits or instruments
        case "sum":
            same_kind(receipts)
            return sum(numbers)
        case "min":
            return min(numbers)
        case _:
            return max(numbers)


def _word(judged: Sequence[Judged]) -> tuple[Word, str]:
    missing = [one.criterion.name for one in judged if one.outcome == "missing"]
    kills = [one for one in judged if one.outcome == "kills"]
    said = "; ".join(
        f"{one.criterion.name}: {one.value:.6g} {one.unit} is {one.criterion.kills_when} "
        f"the bar of {one.criterion.bar:.6g}".replace("  ", " ")
        for one in kills
    )
    if missing:
        why = f"not measured: {', '.join(missing)}"
        return "undecided", f"{why}; so far {said}" if said else why
    if kills:
        return "no-go", said
    return "go", f"all {len(judged)} criteria are passed"
