"""`qwisp reconcile`: what the dialects predict beside what real allocators printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from qwisp.cli import output
from qwisp.errors import BadInput, NotInstalled
from qwisp.memory.reconcile import Reconciled, read_truth, reconcile
from qwisp.units import MIB, parse_tokens

COLUMNS = (
    output.Column("id"),
    output.Column("engine"),
    output.Column("part"),
    output.Column("predicted_mib", "predicted MiB", "{:.4f}".format),
    output.Column("measured_mib", "measured MiB", str),
    output.Column("difference_mib", "difference", "{:+.4f}".format),
    output.Column("verdict"),
    output.Column("reason", "", str),
)


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
@output.formats
@click.pass_context
def command(
    context: click.Context,
    truth: Path | None,
    live: bool,
    models: tuple[str, ...],
    contexts: tuple[str, ...],
    output_format: str,
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
    document = reconcile_document(results)
    output.emit(document["rows"], COLUMNS, output_format, document=document)
    output.note(document["summary"], output_format)
    if document["missed"]:
        context.exit(1)


def _live(models: Sequence[str], contexts: Sequence[str]) -> list[Reconciled]:
    tokens = [parse_tokens(text) for text in contexts]
    try:
        from qwisp.engine.proof.live import CONTEXTS_TOKENS, FAMILIES, reconcile_live
    except ImportError as error:
        raise NotInstalled(f"{error.name} is not installed", "install qwisp with mlx") from None
    return reconcile_live(models or FAMILIES, tokens or CONTEXTS_TOKENS)


def reconcile_document(results: Sequence[Reconciled]) -> dict[str, Any]:
    """Return the document of `qwisp reconcile --json`: a row each, counts, a closing line."""
    verdicts = [result.verdict for result in results]
    reproduced, not_modelled = verdicts.count("reproduced"), verdicts.count("not modelled")
    return {
        "schema": 1,
        "rows": [_row(result) for result in results],
        "reproduced": reproduced,
        "missed": verdicts.count("missed"),
        "not_modelled": not_modelled,
        "summary": f"{reproduced} of {len(results)} rows reproduced, {not_modelled} not modelled",
    }


def _row(result: Reconciled) -> dict[str, Any]:
    predicted, difference = result.predicted_bytes, result.difference_mib
    return {
        "id": result.id,
        "engine": result.engine,
        "model": result.model,
        "part": result.part,
        "predicted_bytes": predicted,
        "predicted_mib": None if predicted is None else predicted / MIB,
        "measured_mib": float(result.measured_mib),
        "tolerance_mib": float(result.tolerance_mib),
        "difference_mib": None if difference is None else float(difference),
        "verdict": result.verdict,
        "reason": result.reason,
    }
