"""A page of the scheduler lab that works from a file: one chart, one slider, no network.

Charts move with the chart's own parameter `t`; the sentence and the table are set as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

_TEMPLATE = Path(__file__).with_name("lab_page.html")


class Shown(TypedDict):
    """What the page says at one position of its slider: `waits` are rows of cells."""

    at_s: float
    finding: str
    waits: list[list[str]]
    more: int


def slider_page(
    chart: alt.TopLevelMixin,
    shown: Sequence[Shown],
    *,
    start: int,
    title: str,
    summary: str,
    commands: Sequence[str],
    scenario: str,
) -> str:
    """Return the page as HTML, about 1.2 MB, most of it the chart library.

    `chart` has a parameter `t` in seconds, `shown` is what to say at each position, `start` the
    first of them to show. The page's own policy forbids it to load anything.
    """
    version = "_".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        summary=summary,
        num_times=len(shown),
        start=start,
        commands=commands,
        scenario=scenario,
        scenario_json=_script(scenario),
        moments=_script(list(shown)),
        spec=_script(chart.to_dict()),
        bundle=Markup(vl_convert.javascript_bundle(vl_version=version)),
    )


def _script(value: object) -> Markup:
    """Return JSON that cannot end the script around it, whatever names a trace holds."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
