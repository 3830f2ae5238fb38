"""One picture to pass on: the finding, the machine it is from, its receipt and the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qwisp.errors import BadInput
from qwisp.receipts.stamp import Stamp

if TYPE_CHECKING:
    import altair as alt

_FORMATS = (".png", ".svg")


def share(
    chart: alt.TopLevelMixin,
    path: str | Path,
    *,
    command: str,
    finding: str = "",
    receipt: str = "",
) -> Path:
    """Write the chart with its origin under the title and return the path (`.png` or `.svg`).

    `finding` replaces the chart's own title; `receipt` is the id of the measurement it shows.
    Raises `BadInput` for another ending, a folder that is not there, and a chart without a title.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise BadInput(f"{path} ends in {path.suffix!r}", f"use {' or '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise BadInput(f"folder {path.parent} does not exist", "make it, or give another path")
    title = finding or getattr(chart, "title", None)
    if not isinstance(title, str) or not title:
        raise BadInput("the chart says no finding", "give finding='...'")
    lines = [*origin(), *([f"receipt {receipt}"] if receipt else []), f"$ {command}"]
    text = {"text": title, "subtitle": lines, "anchor": "start"}
    scale = {"scale_factor": 2} if path.suffix == ".png" else {}
    chart.properties(title=text).save(path, **scale)
    return path


def origin(stamp: Stamp | None = None) -> list[str]:
    """Return machine and software as two short lines."""
    stamp = stamp or Stamp.here()
    machine, packages = dict(stamp.machine), dict(stamp.packages)
    memory = int(machine["memory_bytes"]) / 2**30
    dirty = ", changed since" if stamp.is_dirty else ""
    commit = f", commit {stamp.commit[:12]}{dirty}" if stamp.commit else ""
    return [
        f"computed on {machine['processor']}, {machine['cores']} cores, {memory:.0f} GiB, "
        f"{machine['system']}",
        f"qwisp {packages.get('qwisp', '')}{commit}",
    ]
