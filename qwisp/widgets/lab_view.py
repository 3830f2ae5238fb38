"""The scheduler lab in a notebook: fields, a time slider and charts over a `LabState`.

It only wires: every number and sentence comes from the state, every mark from `qwisp.charts`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from qwisp.charts import lab
from qwisp.errors import QwispError
from qwisp.policies import rule_names
from qwisp.spec.catalog import machine_names, model_names
from qwisp.widgets.figures import picture
from qwisp.widgets.lab_state import LabState
from qwisp.widgets.scenario import Scenario, bundled_traces
from qwisp.widgets.twin import num_stuck, save_html, wait_rows

LAYOUTS = (
    "65536,32768x3,16384x11",
    "4096x12,16384x2",
    "whole_window",
    "fixed_arena:32768",
    "per_request",
)
_BUDGETS = ("0", "1024", "2048")
_CONTEXTS = ("16384", "32768", "65536")
_FIELDS: dict[str, dict[str, tuple[str, Sequence[str]]]] = {  # by column: a label, and offers
    "The question": {
        "model": ("model", model_names()),
        "machine": ("machine", machine_names()),
        "memory": ("memory", ("8GiB", "12GiB", "20GiB")),
        "trace": ("trace or file", bundled_traces()),
        "rate": ("arrivals", ("0.5x", "1x", "2x")),
        "max_new": ("max. reply", ("unset", "oracle")),
        "grow": ("grow", ("256", "8192")),
    },
    "Policy A": {
        "layout": ("sessions", LAYOUTS),
        "context": ("own session", _CONTEXTS),
        "order": ("order", rule_names("orders")),
        "budget": ("prefill budget", _BUDGETS),
    },
    "Policy B (empty: as A)": {
        "layout_b": ("sessions", LAYOUTS),
        "context_b": ("own session", _CONTEXTS),
        "order_b": ("order", rule_names("orders")),
        "budget_b": ("prefill budget", _BUDGETS),
    },
}
_ZOOMS = {"the whole trace": 0.0, "1 hour": 3600.0, "10 minutes": 600.0, "1 minute": 60.0}
_HEADS = ("policy", "request", "is", "for (s)", "waits for", "in numbers")
_STYLE = {"description_width": "initial"}


class LabView(w.VBox):
    """A lab on the screen. `fields` are its inputs by name; the rest is what it shows.

    `time` (slider), `zoom`, `finding` (label), `waits` (table), `request` (the one told about),
    `life`, `scenario` (to copy, or to paste one), `commands`, `error`, `chart`.
    """

    def __init__(self, state: LabState | None = None) -> None:
        self.state = state or LabState()
        self.fields = {
            name: w.Combobox(
                value=getattr(self.state.scenario, name),
                description=label,
                options=tuple(offers),
                continuous_update=False,
                style={"description_width": "90px"},
                layout={"width": "246px"},  # three columns fit the output of a notebook's cell
            )
            for column in _FIELDS.values()
            for name, (label, offers) in column.items()
        }
        columns = [
            w.VBox([w.HTML(f"<b>{title}</b>"), *(self.fields[name] for name in column)])
            for title, column in _FIELDS.items()
        ]
        wide = {"width": "600px"}
        self.time = w.FloatSlider(
            description="time (s)", readout_format=",.1f", style=_STYLE, layout=wide
        )
        self.zoom = w.Dropdown(description="show", options=_ZOOMS, layout={"width": "220px"})
        self.request = w.Text(
            description="request (or click a bar)", continuous_update=False, style=_STYLE
        )
        self.scenario = w.Text(
            description="scenario", continuous_update=False, style=_STYLE, layout=wide
        )
        self.error, self.finding, self.waits, self.life, self.commands, self.verdict = (
            w.HTML() for _ in range(6)
        )
        self.chart = lab.live(None)
        self._is_filling = False
        super().__init__(
            [
                w.HBox(columns, layout={"flex_flow": "row wrap"}),
                self.error,
                self.verdict,
                w.HBox([self.time, self.zoom]),
                self.finding,
                self.chart,
                w.HTML("<b>Why each waiting request waits</b>"),
                self.waits,
                self.request,
                self.life,
                self.scenario,
                self.commands,
            ]
        )
        for name, field in self.fields.items():
            field.observe(lambda change, name=name: self._set(name, change["new"]), "value")
        self.time.observe(self._move, "value")
        self.zoom.observe(lambda change: self._draw(), "value")
        self.request.observe(lambda change: self._tell(), "value")
        self.scenario.observe(self._paste, "value")
        self._show()

    def __repr__(self) -> str:
        return self.state.error or self.state.finding()

    def save_html(self, path: str | Path, num_times: int = 120) -> Path:
        """Write this lab as a page that works from a file; return its path. Raises `QwispError`."""
        return save_html(self.state, path, num_times)

    # ---- what a user does --------------------------------------------------------------------

    def _set(self, name: str, text: str) -> None:
        if not self._is_filling:
            self.state.set(**{name: text})
            self._show()

    def _move(self, change: dict[str, Any]) -> None:
        if self._is_filling or self.state.error:
            return
        self.state.at_s = change["new"]
        if self.state.window(self.zoom.value or None) != self._window:
            self._draw()
        self.chart.params.t = self.state.at_s
        self._say()

    def _paste(self, change: dict[str, Any]) -> None:
        if self._is_filling:
            return
        try:
            self.state = LabState.from_string(change["new"])
        except QwispError as error:
            self.error.value = _two_lines(str(error))
            return
        self._show()

    def _picked(self, policy: str, change: dict[str, Any]) -> None:
        if change["new"].value:
            prefix = f"{policy}:" if self.state.scenario.has_b else ""
            self.request.value = f"{prefix}{change['new'].value[0]['id']}"

    # ---- what it shows -----------------------------------------------------------------------

    def _show(self) -> None:
        """Show the state's scenario anew; with an error nothing else, so that nothing is stale."""
        error = self.state.error
        self.error.value = _two_lines(error)
        self._is_filling = True
        for name, field in self.fields.items():
            field.value = getattr(self.state.scenario, name)
        if not error:
            span_s = max(self.state.span_s, 1e-3)
            self.time.value = 0.0  # so that no end of the range passes it
            self.time.max, self.time.step = span_s, span_s / 500
            self.time.value = self.state.at_s = min(self.state.at_s, span_s)
        self._is_filling = False
        if error:
            self.chart.chart = None
            for label in (self.verdict, self.finding, self.waits, self.life, self.commands):
                label.value = ""
            return
        self.verdict.value = _text(*self._verdicts())
        self._draw()
        self._say()
        self._tell()

    def _verdicts(self) -> Iterable[str]:
        for name, run in self.state.runs.items():
            yield f"{name}: {run.summary.verdict} at {float(run.rate):g}x, {run.summary.why}"
        if (comparison := self.state.comparison()) is not None:
            yield comparison.finding
        if self.state.remarks:
            yield self.state.remarks

    def _draw(self) -> None:
        if self.state.error:
            return
        self._window = self.state.window(self.zoom.value or None)
        self.chart.chart = picture(self.state, self._window)
        for policy in self.state.runs:
            self.chart.selections.observe(
                lambda change, policy=policy: self._picked(policy, change), lab.PICKED + policy
            )

    def _say(self) -> None:
        now = {name: self.state.at(policy=name) for name in self.state.runs}
        names = [f"{name}: " if len(now) > 1 else "" for name in now]
        found = [n + moment.finding for n, moment in zip(names, now.values(), strict=True)]
        self.finding.value = f"<b>{_text(*found)}</b>"
        rows = wait_rows(now)
        more = num_stuck(now) - len(rows)
        self.waits.value = _table(_HEADS, rows) + (_text(f"and {more:,} more") if more else "")
        self._is_filling = True
        self.scenario.value = self.state.to_string()
        self._is_filling = False
        self.commands.value = "".join(
            f"<pre>{html.escape(line)}</pre>" for line in self.state.commands()
        )

    def _tell(self) -> None:
        """Tell the life of the request whose id is in the field, `B:7` for policy B."""
        text = self.request.value.strip()
        if not text or self.state.error:
            self.life.value = ""
            return
        policy, _, number = text.rpartition(":")
        try:
            events = self.state.life(_whole(number), policy.strip().upper() or "A")
        except QwispError as error:
            self.life.value = _two_lines(str(error))
            return
        self.life.value = _table(("time (s)", "what"), [(f"{e.at_s:,.1f}", e.text) for e in events])


def show_lab(**fields: str) -> LabView:
    """Return a lab on the scenario with these fields; the others have their defaults.

    Raises `BadInput` for a name that is no field. What is wrong with a value is shown, not raised.

    >>> lab = show_lab(layout="16384x4")
    >>> lab.time.value = 300.0
    >>> lab.finding.value[:14]
    '<b>At 300.0 s '
    """
    state = LabState(Scenario())
    state.set(**fields)
    return LabView(state)


def _whole(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


def _text(*lines: str) -> str:
    return "<br>".join(html.escape(line) for line in lines)


def _two_lines(error: str) -> str:
    if not error:
        return ""
    return f'<div role="alert" style="color:#B00020">{_text(*error.splitlines())}</div>'


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"
