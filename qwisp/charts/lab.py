"""Charts of the scheduler lab: a run over time with a rule at `t`, two policies on one axis.

`t` is a parameter of the chart, in seconds: a notebook or a slider moves it, nothing is redrawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from qwisp.charts import _colour, _scale, sessions_over_time

WIDTH = 560  # with legends it fits the output of a notebook's cell

POLICIES = {"A": "#0072B2", "B": "#D55E00"}
PICKED = "picked"
MAX_DOTS = 1000
_MOVED = "#CC79A7"
_SOONER, _LATER = "#0072B2", "#D55E00"


def sessions_at(
    segments: pl.DataFrame, *, sessions: Sequence[str] = (), policy: str = "A", named: bool = False
) -> alt.LayerChart:
    """Return `sessions_over_time` with the bars at time `t` outlined; a click picks a request.

    Columns as there and `moved` (the stream came from another session: a pink tick). The selection
    is called `picked` and the policy, and holds ids.
    """
    pick = alt.selection_point(name=f"{PICKED}{policy}", fields=["id"], toggle=False)
    bars = sessions_over_time(segments, sessions=sessions)
    title = f"{policy}: {bars.title}" if named else bars.title
    if moves := int(segments["moved"].sum()):
        title += f"; pink: {moves:,} moves"
    now = (
        bars.transform_filter("datum.begin_s <= t && t < datum.end_s")
        .mark_bar(height={"band": 0.8}, filled=False, stroke="#000", strokeWidth=1.5)
        .properties(title="")
    )
    moved = (
        alt.Chart(bars.data)
        .transform_filter("datum.moved")
        .mark_tick(orient="vertical", thickness=3)
        .encode(x="begin_s:Q", y=bars.encoding.y, color=alt.value(_MOVED))
    )
    faded = alt.condition(pick, alt.value(1.0), alt.value(0.35))
    bars = bars.encode(opacity=faded).add_params(pick)
    return alt.layer(bars, moved, now).properties(title=title)


def over_time(
    charts: Sequence[alt.Chart | alt.LayerChart],
    *,
    at_s: float,
    window: tuple[float, float],
    below: Sequence[alt.Chart] = (),
) -> alt.VConcatChart:
    """Return charts over the seconds of `window`, one above the other, each with a rule at `t`.

    `t` starts at `at_s`. Charts `below` keep their own axes.
    """
    rule = (
        alt.Chart(alt.InlineData(values=[{}]))
        .transform_calculate(now="t")
        .mark_rule(color="#000", opacity=0.7)
        .encode(x=alt.X("now:Q", scale=alt.Scale(domain=list(window), nice=False, zero=False)))
    )
    rows: dict[str, list[dict]] = {}
    charts = [_without_rows(chart, rows) for chart in charts]
    below = [_without_rows(chart, rows) for chart in below]
    ruled = [alt.layer(c, rule).properties(title=c.title, width=WIDTH) for c in charts]
    whole = alt.vconcat(*ruled, bounds="flush", spacing=56)
    whole = whole.resolve_scale(x="shared", color="independent")
    if below:
        whole = alt.vconcat(whole, *below, spacing=24).resolve_scale(color="independent")
    # Not by add_params, which would hand it to every chart and collect it again.
    time = alt.param(name="t", value=at_s).param
    clicks = [] if whole.params is alt.Undefined else whole.params
    whole.params = [*clicks, time]
    whole.datasets = rows
    return whole


def _without_rows(chart: alt.TopLevelMixin, rows: dict[str, list[dict]]) -> alt.TopLevelMixin:
    """Move the rows of a chart into `rows` and name them: Altair copies its charts at every step.

    That made a picture of two policies take 3 s; with names it takes a tenth.
    """
    chart = chart.copy(deep=False)
    if isinstance(data := getattr(chart, "data", None), pl.DataFrame):
        name = f"rows{len(rows)}"
        rows[name] = data.to_dicts()
        chart.data = alt.NamedData(name)
    if parts := getattr(chart, "layer", None):
        chart.layer = [_without_rows(part, rows) for part in parts]
    return chart


def two_queues(queue: pl.DataFrame) -> alt.LayerChart:
    """Return how many requests wait under A and under B, and B less A, on one axis.

    Columns `time_s`, `waiting_a`, `waiting_b`, `difference`; the title says who waits more.
    """
    names = {"waiting_a": "A", "waiting_b": "B"}
    lines = queue.rename(names).unpivot(
        ["A", "B"], index="time_s", variable_name="policy", value_name="waiting"
    )
    most_a, most_b = (int(queue[name].max() or 0) for name in names)
    title = f"at most {most_a:,} requests wait under A, {most_b:,} under B; grey: B less A"
    x = alt.X("time_s:Q", title="time (s)", scale=_scale(queue))
    area = (
        alt.Chart(queue)
        .mark_area(interpolate="step-after", color="#999", opacity=0.5)
        .encode(x=x, y=alt.Y("difference:Q", title="waiting (requests)"))
    )
    both = (
        alt.Chart(lines)
        .mark_line(interpolate="step-after", strokeWidth=1.2)
        .encode(x=x, y="waiting:Q", color=_colour("policy", POLICIES))
    )
    return (area + both).properties(width=WIDTH, height=140, title=title)


def ttft_curve(frame: pl.DataFrame) -> alt.Chart:
    """Return the share of requests whose first token came within so many seconds.

    Columns `policy` (A, B), `ttft_s`, `share`; the title says when half were answered.
    """
    parts = []
    for name in frame["policy"].unique(maintain_order=True):
        half = frame.filter((pl.col("policy") == name) & (pl.col("share") >= 0.5))
        when = f"{half['ttft_s'].min():,.1f} s" if half.height else "never"
        parts.append(f"{when} under {name}")
    title = f"half of the requests have a first token within: {', '.join(parts) or 'never'}"
    data = frame.filter(pl.col("ttft_s") > 0)  # a log axis has no zero
    rank = pl.int_range(pl.len()).over("policy")
    every = -(-data.height // MAX_DOTS)
    data = data.filter((rank % max(1, every) == 0) | (rank == pl.len().over("policy") - 1))
    log = {"type": "log"}
    return (
        alt.Chart(data, title=title)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("ttft_s:Q", title="time to first token (s, log)", scale=_scale(data, **log)),
            y=alt.Y(
                "share:Q",
                title="requests answered",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            color=_colour("policy", POLICIES),
        )
        .properties(width=WIDTH, height=140)
    )


def ttft_difference(requests: pl.DataFrame) -> alt.Chart:
    """Return one dot a request: how much later (above) or sooner (below) B answers it.

    Columns `id`, `arrival_s`, `ttft_a_s`, `ttft_b_s`, `difference_s`; dots where both answer. The
    title counts all; beyond 1,000 only every n-th is drawn, as it then says.
    """
    both = requests.drop_nulls("difference_s")
    sooner = int((both["difference_s"] < 0).sum())
    later = int((both["difference_s"] > 0).sum())
    title = f"B answers {sooner:,} of {both.height:,} requests sooner, {later:,} later"
    if (every := -(-both.height // MAX_DOTS)) > 1:
        title += f" (one in {every:,} drawn)"
        both = both.gather_every(every)
    return (
        alt.Chart(both, title=title)
        .mark_circle(size=18, opacity=0.7)
        .encode(
            x=alt.X("arrival_s:Q", title="arrival (s)", scale=_scale(both)),
            y=alt.Y("difference_s:Q", title="B less A (s)", scale=_scale(both)),
            color=alt.condition("datum.difference_s > 0", alt.value(_LATER), alt.value(_SOONER)),
            tooltip=["id:N", "arrival_s:Q", "ttft_a_s:Q", "ttft_b_s:Q", "difference_s:Q"],
        )
        .properties(width=WIDTH, height=140)
    )


def live(chart: alt.TopLevelMixin | None) -> alt.JupyterChart:
    """Return the chart (or none yet) as a widget that needs no network; its marks are SVG."""
    alt.JupyterChart.enable_offline()
    return alt.JupyterChart(chart, embed_options={"renderer": "svg", "actions": False})
