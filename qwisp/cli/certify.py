"""`qwisp certify`: run the same requests alone and together, and compare every bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qwisp.cli import output
from qwisp.cli.output import Column
from qwisp.errors import BadInput, CheckFailed, NotInstalled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qwisp.engine.proof.certificate import Certificate, CertificateRow, Sample
    from qwisp.engine.weights.loaded import LoadedModel

COLUMNS = (
    Column("case"),
    Column("request"),
    Column("steps"),
    Column("moves"),
    Column("result"),
    Column("ulp"),
    Column("layer_kind", "layer kind"),
    Column("operation", "first differing operation"),
)

WIDEST = 256


@click.command()
@click.option(
    "--model", required=True, help="A folder; tiny[:NAME] or random:CONFIG.json for random weights."
)
@click.option("--width", default=8, show_default=True, help="Decode width W: rows of every step.")
@click.option("--dtype", help="float32, bfloat16 or float16; the model's own if not given.")
@click.option("--hostile", is_flag=True, help="Kernels whose summation order follows the shape.")
@click.option("--non-strict", is_flag=True, help="The stock way: dynamic width, stock attention.")
@click.option(
    "--tokens", default=1300, show_default=True, help="Longest stream: its prompt and its reply."
)
@click.option("--max-new", default=48, show_default=True, help="Tokens of every reply.")
@click.option("--seed", default=0, show_default=True, help="Seed of prompts and random weights.")
@click.option("--receipts", type=click.Path(path_type=Path), help="Append the receipt to a file.")
@output.formats
def command(
    model: str,
    width: int,
    dtype: str | None,
    hostile: bool,
    non_strict: bool,
    tokens: int,
    max_new: int,
    seed: int,
    receipts: Path | None,
    output_format: str,
) -> None:
    """Is batched decode bit-identical to solo? Exit 1 if any bit differs.

    Prints per case and request: identical, or the first differing step, its distance in units of
    the last place, and the operation that made the difference. Below stands what was exercised;
    what a model has and the runs did not reach is named, and weakens the word but not the exit
    code: `identical as far as exercised` is exit 0. `definition` rows hold attention against its
    definition.
    """
    from qwisp.engine.proof.certificate import certify
    from qwisp.engine.spec.identity import Safeguards
    from qwisp.engine.weights.loading import load_decoder

    if not 0 <= seed < 2**32:
        raise BadInput(f"seed is {seed}", "use a whole number from 0 to 4294967295")
    if width > WIDEST:
        raise BadInput(
            f"decode width is {width:,} rows: as many requests would run, each also alone",
            f"use 8 to {WIDEST}",
        )
    loaded = load_decoder(model, dtype=dtype, seed=seed)
    guards = Safeguards.none() if non_strict else Safeguards()
    made = certify(
        loaded,
        width=width,
        hostile=hostile,
        safeguards=guards,
        max_new=max_new,
        seed=seed,
        tokens=tokens,
    )
    rows = [
        row._asdict()
        | {"result": "identical" if row.step is None else f"differs from step {row.step}"}
        for row in made.rows
    ]
    not_exercised = [str(missing) for missing in made.missing]
    document = {
        "schema": 1,
        "model": made.model,
        "identity": made.identity.label,
        "hostile": hostile,
        "holds": made.holds,
        "verdict": made.verdict,
        "exercised": made.exercised.as_dict(),
        "not_exercised": not_exercised,
        "altered": dict(made.altered),
        "rows": rows,
    }
    peer = _peer(loaded, made.sample, seed)
    document["mlx_lm"] = peer
    output.emit(rows, COLUMNS, output_format, document=document)
    output.note(f"{made.model}, {made.identity.label}", output_format)
    if hostile:
        counts = ", ".join(f"{shim} {count}" for shim, count in sorted(made.altered.items()))
        output.note(f"results altered by hostile kernels: {counts}", output_format)
    output.note(f"solo against mlx-lm solo: {peer}", output_format)
    output.note(f"exercised: {'; '.join(made.exercised.lines())}", output_format)
    for line in not_exercised:
        output.note(line, output_format)
    if receipts is not None:
        _keep(receipts, document, {"max_new": max_new, "tokens": tokens}, seed)
    if not made.holds:
        raise CheckFailed(
            _what_differs(made.rows),
            "run in strict mode, or report it if this was strict mode",
        )
    output.note(_what_holds(made), output_format)


def _what_differs(rows: Sequence[CertificateRow]) -> str:
    """Return how many replies differ from solo (or that attention does), and the first cause."""
    from qwisp.engine.proof.certificate import DEFINITION

    replies = [row for row in rows if row.case != DEFINITION]
    differing = [row for row in replies if row.step is not None]
    if differing:
        first = differing[0].operation
        return f"{len(differing)} of {len(replies)} replies differ from solo, first by {first}"
    first = next(row.operation for row in rows if row.step is not None)
    return f"attention is not its definition, first in {first}"


def _what_holds(made: Certificate) -> str:
    """Return the last line; it says `all` only of what was exercised in full."""
    from qwisp.engine.proof.certificate import DEFINITION

    replies = sum(row.case != DEFINITION for row in made.rows)
    if made.missing:
        return f"{replies} replies are bit-identical to solo as far as exercised"
    return f"all {replies} replies are bit-identical to solo"


def _peer(loaded: LoadedModel, sample: Sample, seed: int) -> str:
    """Return how far the solo run is from mlx-lm's, or why that is not known."""
    from qwisp.engine.proof.peer import distance_to_mlx_lm

    try:
        return str(distance_to_mlx_lm(loaded, *sample, seed))
    except NotInstalled as reason:
        return f"not compared ({reason.what})"


def _keep(path: Path, document: dict, asked: dict, seed: int) -> None:
    """Append one receipt: the verdict under the engine's identity."""
    from qwisp.receipts import Measured, ReceiptBook, Stamp

    inputs = {key: document[key] for key in ("identity", "hostile")}
    kept = ("holds", "verdict", "exercised", "not_exercised", "altered")
    value = {key: document[key] for key in kept} | {"rows": len(document["rows"])}
    with ReceiptBook(path, stamp=Stamp.here(), clock=time.time, study="certify") as book:
        book.once(
            "bit_identity",
            inputs | asked,
            lambda: Measured(value, "", "raw logits compared word by word"),
            model=document["model"],
            seed=seed,
        )
