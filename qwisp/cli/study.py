"""`qwisp study list | run ID | verdict ID | report ID`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from qwisp.cli import output
from qwisp.errors import BadInput
from qwisp.receipts import Stamp
from qwisp.study import (
    Study,
    Verdict,
    load_study,
    run_study,
    study_ids,
    verdict_markdown,
    verdict_of,
)
from qwisp.study.find import experiments_folder
from qwisp.study.page import bar_text, receipts_origin, value_text

_experiments = click.option(
    "--experiments",
    type=click.Path(path_type=Path),
    help="Folder of studies (default: experiments/ here, or of the checkout).",
)
_LIST = (
    output.Column("study"),
    output.Column("verdict"),
    output.Column("receipts"),
    output.Column("question"),
)
_CRITERIA = (
    output.Column("name", "criterion"),
    output.Column("value_text", "value"),
    output.Column("bar_text", "bar"),
    output.Column("outcome"),
)


@click.group()
def command() -> None:
    """Run or judge a Step-0 study: criteria first, verdict computed from receipts."""


@command.command("list")
@_experiments
@output.formats
def list_studies(experiments: Path | None, output_format: str) -> None:
    """List the studies and their verdicts."""
    root = experiments_folder(experiments, Path.cwd())
    ids = study_ids(root)
    if not ids:
        raise BadInput(f"{root} holds 0 studies", "name a folder of folders with a study.py each")
    output.emit([_summary(root, id) for id in ids], _LIST, output_format)


def _summary(root: Path, id: str) -> dict[str, object]:
    try:
        study = load_study(root, id)
        verdict = verdict_of(study, root / id)
    except BadInput as error:  # one broken study must not hide the others
        return {"study": id, "verdict": "unreadable", "receipts": None, "question": error.what}
    return {
        "study": id,
        "verdict": verdict.word,
        "receipts": len(verdict.receipts),
        "question": study.question,
    }


@command.command()
@click.argument("id")
@_experiments
@output.formats
def run(id: str, experiments: Path | None, output_format: str) -> None:
    """Measure what is not measured yet, then judge. Interrupted runs go on where they stopped."""
    study, folder = _find(id, experiments)
    verdict = run_study(study, folder, stamp=Stamp.here(), clock=time.time)
    _show(verdict, output_format)


@command.command()
@click.argument("id")
@_experiments
@output.formats
def verdict(id: str, experiments: Path | None, output_format: str) -> None:
    """Compute the verdict from the receipts alone; measures nothing."""
    study, folder = _find(id, experiments)
    _show(verdict_of(study, folder), output_format)


@command.command()
@click.argument("id")
@click.option("--out", type=click.Path(path_type=Path), help="HTML file (default: beside study).")
@_experiments
def report(id: str, out: Path | None, experiments: Path | None) -> None:
    """Write VERDICT.md beside the study, and one self-contained HTML page."""
    from qwisp.report import write_report

    study, folder = _find(id, experiments)
    found = verdict_of(study, folder)
    (folder / "VERDICT.md").write_text(verdict_markdown(found), encoding="utf-8")
    page = out or folder / "report.html"
    num_bytes = write_report(_page(found), page)
    click.echo(f"{folder / 'VERDICT.md'}\n{page} ({num_bytes:,} bytes)")


def _find(id: str, experiments: Path | None) -> tuple[Study, Path]:
    root = experiments_folder(experiments, Path.cwd())
    return load_study(root, id), root / id


def _show(verdict: Verdict, output_format: str) -> None:
    rows = [
        {
            "name": one.criterion.name,
            "metric": one.criterion.metric,
            "value": one.value,
            "unit": one.unit,
            "bar": one.criterion.bar,
            "kills_when": one.criterion.kills_when,
            "outcome": one.outcome,
            "receipts": [receipt.id for receipt in one.receipts],
            "value_text": value_text(one),
            "bar_text": bar_text(one),
        }
        for one in verdict.judged
    ]
    printed = {"value_text", "bar_text"}
    document = {
        "schema": 1,
        "study": verdict.study.id,
        "question": verdict.study.question,
        "verdict": verdict.word,
        "why": verdict.why,
        "criteria_hash": verdict.study.criteria_hash,
        "criteria": [{k: v for k, v in row.items() if k not in printed} for row in rows],
        "receipts": len(verdict.receipts),
        "commits": list(verdict.commits),
        "torn_characters": len(verdict.torn),
    }
    output.emit(rows, _CRITERIA, output_format, document=document, title=verdict.study.question)
    if verdict.torn:
        output.note(f"a torn last line of {len(verdict.torn)} characters was skipped", "stderr")
    if output_format != "json":
        output.note(f"{verdict.word}: {verdict.why}", output_format)


def _page(verdict: Verdict) -> object:
    from qwisp.report import Figure, Heading, Page, Table

    study = verdict.study
    criteria = Table(
        title="Criteria, declared before the first measurement",
        columns=[
            Heading(title=t) for t in ("criterion", "value", "bar", "outcome", "why this bar")
        ],
        rows=[
            (one.criterion.name, value_text(one), bar_text(one), one.outcome, one.criterion.why)
            for one in verdict.judged
        ],
    )
    receipts = Table(
        title="Receipts",
        columns=[Heading(title=t) for t in ("receipt", "metric", "inputs", "value", "instrument")],
        rows=[
            (r.id, r.metric, _short(r.inputs), f"{_short(r.value)} {r.unit}", r.instrument)
            for r in verdict.receipts
        ],
    )
    tables = [criteria, receipts]
    if study.findings is not None and verdict.receipts:
        found = [(finding,) for finding in study.findings(verdict.receipts)]
        tables.insert(1, Table(title="Findings", columns=[Heading(title="")], rows=found))
    charts = study.figures(verdict.receipts) if study.figures and verdict.receipts else ()
    return Page(
        title=f"Study {study.id}",
        verdict=verdict.word,
        why=verdict.why,
        command=f"qwisp study run {study.id} && qwisp study report {study.id}",
        facts=[("Question", study.question), ("Protocol", study.protocol)],
        tables=tables,
        figures=[Figure(chart=chart, caption=caption) for chart, caption in charts],
        stamp=receipts_origin(verdict),
    )


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(one)}" for key, one in value.items())[:200]
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:200]
