"""Calibration files: the measured figures with their sources, and what was fitted from them.

A file carries both, so that loading a cost model needs no fit, and a test can repeat the fit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from qwisp.cost.measured import CopyPoint, DecodePoint, Measurements, PrefillPoint
from qwisp.cost.model import CostModel, Residual
from qwisp.errors import BadInput, NotCalibrated
from qwisp.spec.data_files import data_path

SCHEMA = "qwisp-cost-1"
_POINTS = {"prefill": PrefillPoint, "decode": DecodePoint, "copies": CopyPoint}
_FITTED = [
    "round_ps",
    "chunk_ps",
    "token_ps",
    "depth_ps",
    "window_depth_ps",
    "step_ps_by_width",
    "row_ps",
    "copy_bytes_per_s",
]


def calibration_path(model: str, machine: str, folder: Path | None = None) -> Path:
    """Return where the calibration of this pair is or would be, among the bundled ones by default.

    >>> calibration_path("org/name", "this", Path("x")).name
    'cost-org--name-this.json'
    """
    plain = model.replace("/", "--").replace(":", "-")
    return (folder or data_path("calibration")) / f"cost-{plain}-{machine}.json"


def own_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where `qwisp calibrate` keeps what it measured: `$XDG_DATA_HOME/qwisp/calibration`.

    `$QWISP_HOME/calibration` if that is set.

    >>> own_folder({"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/qwisp/calibration'
    >>> own_folder({"QWISP_HOME": "/mine", "XDG_DATA_HOME": "/data"}).as_posix()
    '/mine/calibration'
    """
    if environ.get("QWISP_HOME"):
        return Path(environ["QWISP_HOME"]).expanduser() / "calibration"
    base = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "qwisp" / "calibration"


def calibrated_pairs(*folders: Path) -> list[tuple[str, str]]:
    """Return the (model, machine) pairs with a calibration: bundled, and in `folders`."""
    found = []
    for folder in (data_path("calibration"), *folders):
        for path in sorted(folder.glob("cost-*.json")):
            document = _read(path)
            found.append((document["model"], document["machine"]))
    return sorted(set(found))


def load_cost(model: str, machine: str, *, folders: Sequence[Path] | None = None) -> CostModel:
    """Return the cost model of `model` on `machine`.

    Files in `folders` (by default what was measured on this machine) win over bundled ones. Raises
    `NotCalibrated` for a pair nobody measured: the cost of another model or machine is never used
    in its place.

    >>> load_cost("qwen3.6-35b-a3b", "m1-max-64gb").chunk_tokens
    1024
    """
    folders = (own_folder(),) if folders is None else folders
    for folder in (*folders, None):
        path = calibration_path(model, machine, folder)
        if path.is_file():
            return read_cost(path)[0]
    known = ", ".join(f"{a} on {b}" for a, b in calibrated_pairs(*folders)) or "none"
    raise NotCalibrated(
        f"nobody has measured the times of {model} on {machine} (measured: {known})",
        "measure them there with `qwisp calibrate`, or ask `qwisp fit` for memory only",
    )


def read_cost(path: Path) -> tuple[CostModel, Measurements]:
    """Return the cost model of a calibration file and the measurements it was fitted from."""
    document = _read(path)
    try:
        measured = _measured(document)
        fitted = dict(document["fitted"])
        fitted["step_ps_by_width"] = tuple((w, ps) for w, ps in fitted["step_ps_by_width"])
        model = CostModel(
            **{name: fitted[name] for name in _FITTED},
            name=measured.name,
            machine=measured.machine,
            model=measured.model,
            chunk_tokens=measured.chunk_tokens,
            chunk_rule=measured.chunk_rule,
            window_tokens=measured.window_tokens,
            copy_measured=bool(measured.copies),
            provenance=measured.sources,
            notes=measured.notes,
            residuals=tuple(Residual(*row) for row in document["residuals"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} is not a calibration: {type(error).__name__} {error}",
            "write it with `qwisp calibrate`",
        ) from error
    return model, measured


def write_cost(path: Path, measured: Measurements) -> CostModel:
    """Fit `measured`, write figures, coefficients and residuals to `path`, return the model."""
    from qwisp.cost.fit import fit_cost, residuals

    model = fit_cost(measured)
    model = replace(model, residuals=residuals(model, measured))
    document: dict[str, Any] = {"schema": SCHEMA} | asdict(measured)
    for name, point in _POINTS.items():
        document[name] = {"columns": point._fields, "rows": [list(p) for p in document[name]]}
    document["fitted"] = {name: getattr(model, name) for name in _FITTED}
    document["residuals"] = [
        [r.label, r.measured_s, round(r.fitted_s, 6), r.used] for r in model.residuals
    ]
    path.write_text(_as_text(document), encoding="utf-8")
    return read_cost(path)[0]


def _measured(document: dict[str, Any]) -> Measurements:
    values = {f.name: document[f.name] for f in fields(Measurements)}
    for name, point in _POINTS.items():
        columns = values[name]["columns"]
        rows = (dict(zip(columns, row, strict=True)) for row in values[name]["rows"])
        values[name] = tuple(point(**row) for row in rows)
    for name in ("terms", "sources", "notes"):
        values[name] = tuple(values[name])
    return Measurements(**values)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}", "write it with `qwisp calibrate`"
        ) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise BadInput(f"{path} is no {SCHEMA} file", "write it with `qwisp calibrate`")
    return document


def _as_text(document: dict[str, Any]) -> str:
    """Return JSON with a line for each measured row, so that a figure is a line of a diff."""

    def lines(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, dict) and value:
            items = (f"{inner}{json.dumps(k)}: {lines(v, inner)}" for k, v in value.items())
            return "{\n" + ",\n".join(items) + f"\n{indent}}}"
        nested = isinstance(value, list | tuple) and value
        if nested and isinstance(value[0], list | tuple | str) and len(indent) < 3:
            return "[\n" + ",\n".join(inner + json.dumps(v) for v in value) + f"\n{indent}]"
        return json.dumps(value)

    return lines(document, "") + "\n"
