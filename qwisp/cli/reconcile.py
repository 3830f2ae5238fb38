"""`qwisp reconcile`: what the dialects predict beside what real allocators printed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import click

from qwisp.errors import BadInput, NotInstalled
from qwisp.memory.reconcile import Reconciled, read_truth, reconcile
from qwisp.units import MIB, parse_tokens

COLUMNS = ("id", "engine", "part", "predicted MiB", "measured MiB", "difference", "verdict")


@click.command("reconcile")
@click.option(
    "--truth",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Rows that real allocators printed.",
)
@click.option("--live", is_flag=True, help="Load models and allocate arenas now, compare bytes.")
@click.option("--model", "models", multiple=True, help="With --live: this one. [default: families]")
@click.option("--context", "contexts", multiple=True, help="With --live: tokens of the session.")
@click.option("--json", "form", flag_value="json", help="One JSON document.")
@click.option("--csv", "form", flag_value="csv", help="Comma-separated rows.")
@click.option("--markdown", "form", flag_value="markdown", help="A Markdown table.")
@click.pass_context
def command(
    context: click.Context,
    truth: Path | None,
    live: bool,
    models: tuple[str, ...],
    contexts: tuple[str, ...],
    form: str | None,
) -> None:
    """Predict every row of FILE.json from its geometry; exit 1 if one misses its tolerance.

    With --live the allocator is this project's own, asked now, and not a byte may differ: weights
    and caches of every family, or of the models given, by term and by MLX's own counter.
    """
    if (truth is None) != live:
        given = "neither is given" if truth is None else "both are given"
        raise BadInput(f"--truth or --live: {given}", "give --truth FILE.json, or --live")
    if truth is not None and (models or contexts):
        raise BadInput("--model and --context with --truth", "they belong to --live")
    results = reconcile(read_truth(truth)) if truth is not None else _live(models, contexts)
    click.echo(
        {"json": as_json, "csv": as_csv, "markdown": as_markdown}.get(form, as_text)(results)
    )
    if any(result.verdict == "missed" for result in results):
        context.exit(1)


def _live(models: Sequence[str], contexts: Sequence[str]) -> list[Reconciled]:
    tokens = [parse_tokens(text) for text in contexts]
    try:
        from qwisp.engine.live import CONTEXTS_TOKENS, FAMILIES, reconcile_live
    except ImportError as error:
        raise NotInstalled(f"{error.name} is not installed", "install qwisp with mlx") from None
    return reconcile_live(models or FAMILIES, tokens or CONTEXTS_TOKENS)


def summary(results: Sequence[Reconciled]) -> str:
    """Return the closing line."""
    verdicts = [result.verdict for result in results]
    return (
        f"{verdicts.count('reproduced')} of {len(results)} rows reproduced, "
        f"{verdicts.count('not modelled')} not modelled"
    )


def _cells(result: Reconciled) -> tuple[str, ...]:
    predicted = result.predicted_bytes
    difference = result.difference_mib
    return (
        result.id,
        result.engine,
        result.part,
        "" if predicted is None else f"{predicted / MIB:.4f}",
        str(result.measured_mib),
        "" if difference is None else f"{float(difference):+.4f}",
        result.verdict + (f": {result.reason}" if result.reason else ""),
    )


def as_text(results: Sequence[Reconciled]) -> str:
    """Return aligned columns and the closing line."""
    table = [COLUMNS, *map(_cells, results)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS) - 1)]
    numeric = (False, False, False, True, True, True)
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=False)
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join([*lines, summary(results)])


def as_markdown(results: Sequence[Reconciled]) -> str:
    """Return a Markdown table and the closing line."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_cells, results)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, "", summary(results)])


def as_csv(results: Sequence[Reconciled]) -> str:
    """Return comma-separated rows and the closing line as a comment."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_cells, results))
    return out.getvalue() + f"# {summary(results)}"


def as_json(results: Sequence[Reconciled]) -> str:
    """Return one document with a list of rows and the counts."""
    rows = [
        {
            "id": result.id,
            "engine": result.engine,
            "model": result.model,
            "part": result.part,
            "predicted_bytes": result.predicted_bytes,
            "predicted_mib": None
            if result.predicted_bytes is None
            else result.predicted_bytes / MIB,
            "measured_mib": float(result.measured_mib),
            "tolerance_mib": float(result.tolerance_mib),
            "difference_mib": None
            if result.difference_mib is None
            else float(result.difference_mib),
            "verdict": result.verdict,
            "reason": result.reason,
        }
        for result in results
    ]
    verdicts = [result.verdict for result in results]
    return json.dumps(
        {
            "schema": 1,
            "rows": rows,
            "reproduced": verdicts.count("reproduced"),
            "missed": verdicts.count("missed"),
            "not_modelled": verdicts.count("not modelled"),
            "summary": summary(results),
        },
        indent=1,
    )
