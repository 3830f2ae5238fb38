"""`qwisp matrix`: memory by model, context and machine; `--validate` holds it to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click

from qwisp.cli import output
from qwisp.cli.output import Column, Row
from qwisp.errors import BadInput
from qwisp.memory.calibration import load_calibration
from qwisp.memory.leave_one_out import leave_one_out
from qwisp.memory.matrix import Cell, matrix
from qwisp.memory.validate import Checked, validate
from qwisp.spec.catalog import load_machine, machine_names, model_names
from qwisp.units import MIB, format_bytes, format_tokens

LONG = [
    Column("model"),
    Column("machine"),
    Column("context_tokens"),
    Column("cache_bytes"),
    Column("needs_bytes"),
    Column("fits"),
    Column("headroom_bytes"),
    Column("provenance"),
    Column("measured_bytes"),
    Column("instrument"),
]


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"


def _signed_mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:+,.1f} MiB"


CHECKS = [
    Column("id", "measured point"),
    Column("instrument", "instrument"),
    Column("measured_bytes", "measured", _mib),
    Column("projected_bytes", "projected", _mib),
    Column("over_bytes", "over", _signed_mib),
    Column("bar", "bar"),
    Column("verdict", ""),
    Column("left_out_error_bytes", "left out: error", _signed_mib),
]


@click.command("matrix")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this model.")
@click.option("--machine", "machines", multiple=True, metavar="NAME", help="Only this machine.")
@click.option("--slots", type=click.IntRange(1), help="Expert slots per layer; measured: 16.")
@click.option("--validate", "check", is_flag=True, help="Project every measured point again.")
@output.formats
@click.pass_context
def command(
    ctx: click.Context,
    models: tuple[str, ...],
    machines: tuple[str, ...],
    slots: int | None,
    check: bool,
    output_format: str,
) -> None:
    """Print resident memory by model, context and machine; what nobody measured stays blank.

    With --validate, every measured point is projected again; exit 1 if one is under its
    measurement or farther above it than its bar.
    """
    if check:
        _validate(ctx, output_format)
        return
    known = model_names()
    for name in models:
        if name not in known:
            raise BadInput(f"model {name!r} is not in the catalog", f"use {', '.join(known)}")
    # `this` is no row of a table that is to be the same everywhere; it can be asked for.
    names = machines or [name for name in machine_names() if name != "this"]
    cells = matrix(models or known, map(load_machine, names), slots_per_layer=slots)
    if output_format in ("json", "csv"):
        output.emit(long_rows(cells), LONG, output_format)
        return
    rows, columns = wide_rows(cells, names)
    output.note(_summary(cells), output_format)
    output.emit(rows, columns, output_format)
    for line in _legend():
        output.note(line, output_format)


def long_rows(cells: Sequence[Cell]) -> list[Row]:
    """Return a row per cell, with null where nothing is measured."""
    return [
        {**cell._asdict(), "fits": cell.fits, "headroom_bytes": cell.headroom_bytes}
        for cell in cells
    ]


def wide_rows(cells: Sequence[Cell], machines: Sequence[str]) -> tuple[list[Row], list[Column]]:
    """Return a row per model and context with a column per machine; unmeasured cells are blank."""
    rows = []
    for (model, context), group in groupby(cells, lambda c: (c.model, c.context_tokens)):
        across = list(group)
        needs = next((c.needs_bytes for c in across if c.needs_bytes is not None), None)
        row: dict[str, object] = {
            "model": model,
            "context_tokens": context,
            "cache_bytes": across[0].cache_bytes,
            "needs": "" if needs is None else format_bytes(needs),
        }
        rows.append(row | {cell.machine: _verdict(cell) for cell in across})
    columns = [
        Column("model"),
        Column("context_tokens", "context", format_tokens),
        Column("cache_bytes", "cache", format_bytes),
        Column("needs", "needs"),
        *[Column(name) for name in machines],
    ]
    return rows, columns


def _verdict(cell: Cell) -> str:
    if cell.headroom_bytes is None:
        return ""
    free = format_bytes(abs(cell.headroom_bytes))
    mark = "" if cell.provenance == "measured here" else " ~"
    return (f"{free} free" if cell.fits else f"{free} over") + mark


def _summary(cells: Sequence[Cell]) -> str:
    known = [cell for cell in cells if cell.fits is not None]
    fitting = sum(bool(cell.fits) for cell in known)
    blank = len(cells) - len(known)
    return f"{fitting} of {len(known)} measured or borrowed cells fit; {blank} unmeasured are blank"


def _legend() -> list[str]:
    source = load_calibration()
    where = f"{source.fitted_model}, {source.fitted_machine}, {source.date}"
    return [
        f"needs: {source.instrument} of the {source.engine} engine, prompts as long as the context",
        f"~ borrowed: process, scratch and prompt were measured on {where}",
        "check it against every measured point: qwisp matrix --validate",
    ]


def _validate(ctx: click.Context, output_format: str) -> None:
    checked = validate()
    errors = {left.id: left.error_bytes for left in leave_one_out()}
    rows: list[Row] = [
        {
            **point._asdict(),
            "over_bytes": point.over_bytes,
            "holds": point.holds,
            "bar": _bar(point),
            "verdict": "holds" if point.holds else "UNDER" if point.over_bytes < 0 else "TOO HIGH",
            "left_out_error_bytes": errors.get(point.id),
        }
        for point in checked
    ]
    missed = sum(not point.holds for point in checked)
    under = sum(point.over_bytes < 0 for point in checked)
    summary = (
        f"{'PASS' if not missed else 'FAIL'}: {len(checked) - missed} of {len(checked)} measured"
        f" points hold, {under} under their measurement; 4 fitted constants; predicted from all"
        f" others, points err by {_signed_mib(min(errors.values()))} to"
        f" {_signed_mib(max(errors.values()))}"
    )
    document = {"schema": 1, "passed": not missed, "summary": summary, "points": rows}
    output.emit(rows, CHECKS, output_format, document=document)
    output.note(summary, output_format)
    if missed:
        ctx.exit(1)


def _bar(point: Checked) -> str:
    if point.max_over_bytes is None:
        return "never under"
    return "exact" if point.max_over_bytes == 0 else f"at most +{_mib(point.max_over_bytes)}"
