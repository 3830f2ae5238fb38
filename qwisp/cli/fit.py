"""`qwisp fit`: how much memory a model needs here, and the largest context that fits."""

from __future__ import annotations

from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.fit_options import fit_options, read_admission
from qwisp.cli.fit_text import LADDER, as_document, as_markdown, as_text, rung_rows
from qwisp.context_rule import ContextAdmission
from qwisp.cost import CostModel, load_cost
from qwisp.errors import NotCalibrated
from qwisp.memory.fit import fit


@click.command("fit")
@fit_options
@output.formats
@click.pass_context
def command(ctx: click.Context, output_format: str, patience: float, **given: Any) -> None:
    """Print the memory of a model by term and which contexts fit; exit 1 if the asked one does not.

    Each term says how it is known: exact, measured here, borrowed from another machine or model, or
    unmeasured. Other engines' spellings work with --engine: `--engine llama.cpp -c 32768 -np 4 -ctk
    q8_0 -ub 512`, `--engine vllm --max-model-len 32768 --gpu-memory-utilization 0.9 --vram 24GiB`.
    """
    admission, context = read_admission(given)
    answer = fit(admission, context, cost=_cost(admission), patience_s=patience)
    if output_format == "json":
        click.echo(output.to_json(as_document(answer)))
    elif output_format == "csv":
        click.echo(output.to_csv(rung_rows(answer), LADDER))
    else:
        click.echo(as_markdown(answer) if output_format == "markdown" else as_text(answer))
    if answer.refusal is not None:
        ctx.exit(1)


def _cost(admission: ContextAdmission) -> CostModel | None:
    """Return the times of this very pair; without them `fit` still answers for memory."""
    if admission.model is None or admission.machine is None:
        return None
    try:
        return load_cost(admission.model.name, admission.machine.name)
    except NotCalibrated:
        return None
