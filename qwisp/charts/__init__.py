"""Frames in, charts out. No reading, no simulating; the title says the finding, axes carry units.

Every function takes a polars frame whose columns its docstring names and returns an `alt.Chart`.
Call `setup()` first in a notebook, so that charts need no network and outputs compare equal.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import altair as alt
import polars as pl

from qwisp.units import GIB, format_bytes

# Okabe and Ito's palette: tells phases apart for colour-blind readers too.
PHASES = {
    "prefill": "#0072B2",
    "decode": "#009E73",
    "paused": "#D55E00",
}
_WIDTH = 640
_SLOTS = {"slot": pl.Int64, "session": pl.String}


def setup() -> None:
    """Make charts work offline: static ones as PNG, `alt.JupyterChart` with its script inside.

    Altair's own default loads scripts from the network and gives every output a random id.
    """
    alt.JupyterChart.enable_offline()
    alt.renderers.enable("png")
    alt.data_transformers.disable_max_rows()


def memory_by_term(frame: pl.DataFrame, *, limit_bytes: int | None = None) -> alt.LayerChart:
    """Return bars of `term`, `bytes`; with `limit_bytes` the title says whether they fit.

    >>> chart = memory_by_term(pl.DataFrame({"term": ["weights", "KV"], "bytes": [3 * GIB, GIB]}))
    >>> chart.title
    'weights take 75 % of 4.00 GiB'
    """
    total = int(frame["bytes"].sum())
    title = "nothing is held"
    if total:
        top = frame.sort("bytes", descending=True).row(0, named=True)
        title = f"{top['term']} take {top['bytes'] / total:.0%} of {format_bytes(total)}"
        title = title.replace("%", " %")
    if limit_bytes is not None:
        rest = limit_bytes - total
        word = "left" if rest >= 0 else "too much"
        title += f", {format_bytes(abs(rest))} {word}"
    data = frame.with_columns((pl.col("bytes") / GIB).alias("gib"))
    data = data.with_columns(pl.col("bytes").map_elements(format_bytes, pl.String).alias("label"))
    bars = (
        alt.Chart(data, title=title)
        .mark_bar(color="#0072B2")
        .encode(
            x=alt.X("gib:Q", title="memory (GiB)"),
            y=_names("term", "term"),
            tooltip=["term:N", "bytes:Q"],
        )
    )
    labels = bars.mark_text(align="left", dx=4, color="#333").encode(text="label:N")
    return (bars + labels).properties(width=_WIDTH, title=title)


def sessions_over_time(frame: pl.DataFrame, *, sessions: Sequence[str] = ()) -> alt.Chart:
    """Return one row a session and one bar a stretch of a stream, coloured by what it does.

    Columns `id`, `slot`, `phase` (prefill, decode, paused), `begin_s`, `end_s`: the segments of a
    run. `sessions` names the rows from top to bottom, slot 0 first, idle ones included.
    """
    num_rows = max(len(sessions), (frame["slot"].max() + 1) if frame.height else 0)
    names = [
        str(i + 1) if i >= len(sessions) else f"{i + 1}: {sessions[i]}" for i in range(num_rows)
    ]
    busy_s = (frame["end_s"] - frame["begin_s"]).sum()
    span_s = (frame["end_s"].max() - frame["begin_s"].min()) if frame.height else 0.0
    share = busy_s / (span_s * num_rows) if span_s else 0.0
    rows = "session holds" if num_rows == 1 else "sessions hold"
    title = f"{num_rows} {rows} a stream {share * 100:.0f} % of the time"
    by_slot = pl.DataFrame({"slot": range(num_rows), "session": names}, schema_overrides=_SLOTS)
    data = frame.cast({"slot": pl.Int64}).join(by_slot, on="slot", how="left")
    return (
        alt.Chart(data, title=title)
        .mark_bar(height={"band": 0.8})
        .encode(
            x=alt.X("begin_s:Q", title="time (s)", scale=_scale(data)),
            x2="end_s:Q",
            y=_names("session", "session", names),
            color=_colour("phase", PHASES),
            tooltip=["id:N", "session:N", "phase:N", "begin_s:Q", "end_s:Q"],
        )
        .properties(width=_WIDTH, height=max(60, min(400, 16 * num_rows)))
    )


def queue_depth(frame: pl.DataFrame) -> alt.Chart:
    """Return how many requests wait, over time. Columns `time_s`, `waiting`.

    >>> queue_depth(pl.DataFrame({"time_s": [0.0, 2.0], "waiting": [1, 3]})).title
    'at most 3 requests wait, at 2.0 s'
    """
    title = "nothing ever waits"
    if frame.height and (most := frame["waiting"].max()):
        at_s = frame.filter(pl.col("waiting") == most)["time_s"][0]
        title = (
            f"at most {most:,} {'requests wait' if most > 1 else 'request waits'}, at {at_s:,.1f} s"
        )
    return (
        alt.Chart(frame, title=title)
        .mark_area(interpolate="step-after", color="#D55E00", opacity=0.6)
        .encode(
            x=alt.X("time_s:Q", title="time (s)", scale=_scale(frame)),
            y=alt.Y(
                "waiting:Q",
                title="waiting (requests)",
                axis=alt.Axis(tickMinStep=1),
                scale=_scale(frame),
            ),
        )
        .properties(width=_WIDTH, height=140)
    )


def bytes_over_time(frame: pl.DataFrame) -> alt.LayerChart:
    """Return what the layout allocates, what streams hold of it and what they use.

    Columns `time_s`, `allocated_bytes`, `held_bytes`, `used_bytes`: the load of a run.
    """
    names = ("allocated", "held", "used")
    data = frame.select("time_s", *[(pl.col(f"{n}_bytes") / GIB).alias(n) for n in names])
    title = "nothing is allocated"
    if frame.height and (most := frame["allocated_bytes"].max()):
        used = format_bytes(int(frame["used_bytes"].max()))
        title = f"{used} used at most, of {format_bytes(int(most))} allocated"
    colours = {"allocated": "#333333", "held": "#56B4E9", "used": "#009E73"}
    long = data.unpivot(index="time_s", variable_name="bytes", value_name="gib")
    base = alt.Chart(long).encode(
        x=alt.X("time_s:Q", title="time (s)", scale=_scale(long)),
        y=alt.Y("gib:Q", title="memory (GiB)", scale=_scale(long), stack=None),
        color=_colour("bytes", colours),
    )
    areas = base.transform_filter("datum.bytes != 'allocated'").mark_area(opacity=0.5)
    line = base.transform_filter("datum.bytes == 'allocated'").mark_line()
    return (areas + line).properties(width=_WIDTH, height=140, title=title)


def ttft_by_candidate(frame: pl.DataFrame) -> alt.LayerChart:
    """Return time to first token by layout, from the median to the tail, on a log axis.

    Columns `layout`, `quantile` (p50, p95, p99), `ttft_s`; the layout with the least p95 makes the
    title.
    """
    tail = frame.filter((pl.col("quantile") == "p95") & (pl.col("ttft_s") > 0)).sort("ttft_s")
    title = "no request was answered"
    if tail.height:
        best = tail.row(0, named=True)
        title = (
            f"{best['layout']} answers soonest: first token within {best['ttft_s']:,.3g} s at p95"
        )
    data = frame.filter(pl.col("ttft_s") > 0)  # a log axis has no zero
    base = alt.Chart(data).encode(
        x=alt.X(
            "ttft_s:Q",
            title="time to first token (s, log)",
            scale=_scale(data, type="log"),
        ),
        y=_names("layout", "layout"),
    )
    line = base.mark_line(color="#999").encode(detail="layout:N")
    dots = base.mark_point(filled=True, size=70).encode(
        shape=alt.Shape("quantile:N", title=None),
        color=alt.Color("quantile:N", title=None, scale=alt.Scale(scheme="blues")),
        tooltip=["layout:N", "quantile:N", "ttft_s:Q"],
    )
    return (line + dots).properties(width=_WIDTH, title=title)


def on_one_axis(guess: float, model: float, receipt: float | None, *, unit: str) -> alt.Chart:
    """Return the reader's guess, the model's answer and the measured one on one log axis.

    All three above zero, in `unit`; without a measurement `receipt` is None.

    >>> on_one_axis(300.0, 100.0, None, unit="tokens").title
    'your guess is 3 times the answer: 100 tokens'
    """
    answer = model if receipt is None else receipt
    share = guess / answer
    says = f"is {share:.2g} times" if abs(share - 1) >= 0.05 else "meets"
    rows = [("guess", guess), ("model", model), *([("receipt", receipt)] if receipt else [])]
    frame = pl.DataFrame(rows, schema={"said by": pl.String, "value": pl.Float64}, orient="row")
    value = f"{answer:,.0f}" if answer >= 1000 else f"{answer:.4g}"
    title = f"your guess {says} the answer: {value} {unit}"
    return (
        alt.Chart(frame, title=title)
        .mark_point(filled=True, size=140)
        .encode(
            x=alt.X("value:Q", title=f"{unit} (log)", scale=alt.Scale(type="log", nice=True)),
            y=_names("said by", "said by"),
            color=alt.Color("said by:N", legend=None),
        )
        .properties(width=_WIDTH)
    )


def thinned(frame: pl.DataFrame, *, time: str = "time_s", num_points: int = 400) -> pl.DataFrame:
    """Return at most `num_points` rows, each the maxima of a slice of equal time: no peak is lost.

    >>> frame = pl.DataFrame({"time_s": [0.0, 1.0, 2.0, 3.0], "waiting": [0, 9, 1, 2]})
    >>> thinned(frame, num_points=2)["waiting"].to_list()
    [9, 2]
    """
    if frame.height <= num_points:
        return frame
    start, end = frame[time].min(), frame[time].max()
    bucket = ((pl.col(time) - start) / (end - start) * num_points).floor().clip(0, num_points - 1)
    others = pl.exclude(time, "bucket")
    grouped = frame.with_columns(bucket.alias("bucket")).group_by("bucket", maintain_order=True)
    return grouped.agg(pl.col(time).first(), others.max()).drop("bucket")


def to_svg(chart: alt.TopLevelMixin) -> str:
    """Return the chart as an SVG element; texts from data are escaped by the renderer."""
    text = io.StringIO()
    chart.save(text, format="svg")
    return text.getvalue()


def to_png(chart: alt.TopLevelMixin) -> tuple[str, int]:
    """Return the chart as a `data:` address and its width in CSS pixels (it has twice as many).

    For charts with so many marks that their SVG would be slow to open.
    """
    data = io.BytesIO()
    chart.save(data, format="png", scale_factor=2)
    png = data.getvalue()
    width = int.from_bytes(png[16:20], "big")  # every PNG begins with its header chunk
    return "data:image/png;base64," + base64.b64encode(png).decode(), width // 2


def _names(field: str, title: str, order: list[str] | None = None) -> alt.Y:
    scale = alt.Scale(domain=order) if order else alt.Undefined
    axis = alt.Axis(labelLimit=260)
    return alt.Y(field, type="nominal", title=title, sort=None, scale=scale, axis=axis)


def _scale(frame: pl.DataFrame, **settings: str) -> alt.Scale:
    """Return a scale that has a domain even without rows: without one, ticks are drawn at NaN."""
    domain = [1, 10] if settings.get("type") == "log" else [0, 1]
    return alt.Scale(**settings) if frame.height else alt.Scale(domain=domain, **settings)


def _colour(field: str, palette: dict[str, str]) -> alt.Color:
    scale = alt.Scale(domain=list(palette), range=list(palette.values()))
    return alt.Color(field, type="nominal", title=None, scale=scale)
