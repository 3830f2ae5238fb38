"""`qwisp calibrate`: time the lane engine on this machine and fit the cost model to it."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import click

from qwisp.cli import output
from qwisp.cost import CostModel, calibration_path, own_folder, write_cost
from qwisp.errors import BadInput
from qwisp.units import parse_tokens

COLUMNS = (
    output.Column("term"),
    output.Column("value", show=lambda value: f"{value:.6g}"),
    output.Column("unit"),
)
WORST = 3
NOISY = 0.15  # beyond it a prediction is no better than a guess between two settings


@click.command()
@click.option("--model", required=True, help="A folder, or tiny[:NAME] for random weights.")
@click.option("--machine", default="this", show_default=True, help="What to call this machine.")
@click.option("--lanes", default=8, show_default=True, help="Widths 1 to this are timed.")
@click.option("--context", default="4096", show_default=True, help="Tokens of every session.")
@click.option("--chunk", default=256, show_default=True, help="Legal prefill chunk C.")
@click.option("--dtype", help="float32, bfloat16 or float16; the model's own if not given.")
@click.option("--repeats", default=2, show_default=True, help="Timings behind every median.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the calibration here.")
@output.formats
def command(
    model: str,
    machine: str,
    lanes: int,
    context: str,
    chunk: int,
    dtype: str | None,
    repeats: int,
    out: Path | None,
    output_format: str,
) -> None:
    """Measure prefill, decode and copies, and fit the cost model that replays use.

    Leave the machine alone meanwhile. The file goes to your own calibrations, which `plan`,
    `replay` and `fit` read before the bundled ones.
    """
    context_tokens = parse_tokens(context)
    if lanes < 1 or repeats < 1:
        raise BadInput(f"lanes {lanes} and repeats {repeats}", "both must be at least 1")
    from qwisp.engine.calibrate import calibrate
    from qwisp.engine.weights.loading import load_decoder

    loaded = load_decoder(model, dtype=dtype)
    limit = loaded.spec.context_max_tokens or context_tokens
    if not 4 * chunk <= context_tokens <= limit:
        raise BadInput(
            f"context {context_tokens:,} with a chunk of {chunk}",
            f"use {4 * chunk:,} (four chunks) to {limit:,} (the model's own) tokens",
        )
    measured = calibrate(
        loaded,
        machine=machine,
        lanes=lanes,
        context_tokens=context_tokens,
        chunk_tokens=chunk,
        clock=time.perf_counter,
        repeats=repeats,
        progress=lambda text: click.echo(text, err=True),
    )
    path = out or calibration_path(loaded.name, machine, own_folder())
    path.parent.mkdir(parents=True, exist_ok=True)
    cost = write_cost(path, measured)
    rows = [{"term": term, "value": value, "unit": unit} for term, value, unit in _terms(cost)]
    errors = sorted(cost.residuals, key=lambda r: abs(r.error))
    document = {
        "schema": 1,
        "model": cost.model,
        "machine": cost.machine,
        "file": str(path),
        "rows": rows,
        "median_error": median(abs(r.error) for r in errors),
        "residuals": [r._asdict() | {"error": r.error} for r in cost.residuals],
    }
    output.emit(rows, COLUMNS, output_format, document=document)
    output.note(
        f"{len(errors)} times, median error {document['median_error']:.1%}; the worst: "
        + "; ".join(f"{r.label} {r.error:+.0%}" for r in errors[: -WORST - 1 : -1]),
        output_format,
    )
    if document["median_error"] > NOISY:
        output.note("the times vary too much to rely on: repeat on a quiet machine", output_format)
    output.note(f"wrote {path}", output_format)


def _terms(cost: CostModel) -> list[tuple[str, float, str]]:
    terms = [
        ("a round that prefills", cost.round_ps / 1e9, "ms"),
        ("a chunk", cost.chunk_ps / 1e9, "ms"),
        ("a prompt token", cost.token_ps / 1e9, "ms"),
        ("a prompt token, per 1,000 rows before it", cost.depth_ps / 1e6, "ms"),
    ]
    terms += [
        (f"a decode step of {width} lane{'s' * (width > 1)}", ps / 1e9, "ms")
        for width, ps in cost.step_ps_by_width
    ]
    terms.append(("1,000 rows in use, per step", cost.row_ps / 1e6, "ms"))
    terms.append(("copies", cost.copy_bytes_per_s / 1e9, "GB/s"))
    return terms
