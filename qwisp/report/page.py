"""One self-contained HTML page: verdict, table, charts, machine stamp, how to reproduce.

The page loads nothing (its own content policy forbids it) and every text in it is escaped, since
names come from traces and model files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import jinja2
from markupsafe import Markup

from qwisp import charts
from qwisp.errors import BadInput

_TEMPLATE = Path(__file__).with_name("page.html")
_MAX_SVG_BYTES = 200_000  # a chart with more marks is smaller, and faster to open, as a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A column's title; numbers are aligned right."""

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as people read them, row by row."""

    title: str
    columns: Sequence[Heading]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart and what to see in it."""

    chart: alt.TopLevelMixin
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a report says, verdict first. `facts` and `stamp` are pairs of label and value."""

    title: str
    verdict: str
    why: str
    command: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    stamp: Sequence[tuple[str, str]] = ()


def to_html(page: Page) -> str:
    """Return the page as HTML. Needs no network to make and none to read."""
    pictures = [(_picture(figure.chart), figure.caption) for figure in page.figures]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(page=page, pictures=pictures)


def write_report(page: Page, path: Path) -> int:
    """Write the page and return its size in bytes; an interrupted write leaves the old file.

    Raises `BadInput` when `path` is a folder.
    """
    if path.is_dir():
        raise BadInput(f"report {path} is a folder", "give a file name, like report.html")
    data = to_html(page).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
    return len(data)


def _picture(chart: alt.TopLevelMixin) -> Markup:
    svg = charts.to_svg(chart)
    if len(svg) <= _MAX_SVG_BYTES:
        return Markup(svg)  # the renderer has escaped the texts: a test holds it to that
    url, width = charts.to_png(chart)
    return Markup('<img alt="{}" width="{}" src="{}">').format(_title(chart), width, url)


def _title(chart: alt.TopLevelMixin) -> str:
    title = getattr(chart, "title", "")
    return title if isinstance(title, str) else ""
