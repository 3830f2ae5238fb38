"""A verdict as text: the lines of `VERDICT.md`. The same receipts give the same text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from qwisp.receipts import Receipt
from qwisp.study.judge import Judged, Verdict


def verdict_markdown(verdict: Verdict) -> str:
    """Return `VERDICT.md`: the word, why, every criterion with its value, findings, origin."""
    study = verdict.study
    lines = [
        f"# {study.id}: {verdict.word}",
        "",
        study.question,
        "",
        f"**Why.** {verdict.why}.",
        "",
    ]
    lines += [f"**Protocol.** {study.protocol}", ""]
    lines += ["| criterion | value | bar | outcome | receipts |", "|:---|---:|:---|:---|---:|"]
    lines += [_row(one) for one in verdict.judged]
    if study.findings is not None and verdict.receipts:
        lines += ["", "## Findings", ""]
        lines += [f"* {finding}" for finding in study.findings(verdict.receipts)]
    lines += ["", "## Bars", ""]
    lines += [f"* **{one.criterion.name}**: {one.criterion.why}" for one in verdict.judged]
    lines += ["", "## Origin", ""]
    lines += [f"* {label}: {value}" for label, value in receipts_origin(verdict)]
    return "\n".join([*lines, ""])


def value_text(judged: Judged) -> str:
    """Return the value with its unit, or what is missing."""
    if judged.value is None:
        return f"{len(judged.receipts)} of {judged.criterion.num_receipts} measured"
    return f"{judged.value:.6g} {judged.unit}".strip()


def bar_text(judged: Judged) -> str:
    """Return what would kill the study."""
    criterion = judged.criterion
    of = "" if criterion.reduce == "only" else f" ({criterion.reduce} of {criterion.num_receipts})"
    return f"killed {criterion.kills_when} {criterion.bar:.6g} {judged.unit}".strip() + of


def _row(judged: Judged) -> str:
    cells = (
        judged.criterion.name,
        value_text(judged),
        bar_text(judged),
        judged.outcome,
        str(len(judged.receipts)),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def receipts_origin(verdict: Verdict) -> list[tuple[str, str]]:
    """Return label and value of where the receipts come from."""
    receipts = verdict.receipts
    rows = [
        ("receipts", f"{len(receipts)}, criteria hash {verdict.study.criteria_hash[:12]}"),
        ("commits", ", ".join(verdict.commits) or "none"),
        ("measured", _dates(receipts)),
        ("machines", "; ".join(sorted({_machine(receipt) for receipt in receipts})) or "none"),
        ("instruments", ", ".join(sorted({receipt.instrument for receipt in receipts})) or "none"),
        ("models", ", ".join(sorted({receipt.model for receipt in receipts} - {""})) or "none"),
        ("again", f"`qwisp study run {verdict.study.id}`"),
    ]
    if verdict.torn:
        rows.append(("torn last line", f"{len(verdict.torn)} characters skipped"))
    return rows


def _machine(receipt: Receipt) -> str:
    names = ("processor", "architecture", "cores", "system", "python")
    return ", ".join(f"{name} {receipt.machine[name]}" for name in names if name in receipt.machine)


def _dates(receipts: Sequence[Receipt]) -> str:
    if not receipts:
        return "nothing yet"
    first = datetime.fromtimestamp(min(r.started_s for r in receipts), UTC)
    last = datetime.fromtimestamp(max(r.ended_s for r in receipts), UTC)
    days = sorted({f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"})
    return " to ".join(days)
