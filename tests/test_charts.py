"""Charts say their finding in the title, carry units, and draw every frame, the empty one too."""

from __future__ import annotations

import altair as alt
import polars as pl
import pytest

from qwisp import charts
from qwisp.units import GIB

FRAMES = {
    "memory_by_term": pl.DataFrame({"term": ["weights", "KV"], "bytes": [3 * GIB, GIB]}),
    "sessions_over_time": pl.DataFrame(
        {
            "id": [1, 2],
            "slot": [0, 1],
            "phase": ["prefill", "decode"],
            "begin_s": [0.0, 1.0],
            "end_s": [2.0, 3.0],
        }
    ),
    "queue_depth": pl.DataFrame({"time_s": [0.0, 1.0], "waiting": [2, 0]}),
    "bytes_over_time": pl.DataFrame(
        {
            "time_s": [0.0, 1.0],
            "allocated_bytes": [GIB, GIB],
            "held_bytes": [GIB * 0.75, 0.0],
            "used_bytes": [GIB * 0.5, 0.0],
        }
    ),
    "ttft_by_candidate": pl.DataFrame(
        {
            "layout": ["a", "a", "b", "b"],
            "quantile": ["p50", "p95"] * 2,
            "ttft_s": [1.0, 9.0, 2.0, 3.0],
        }
    ),
}
TITLES = {
    "memory_by_term": "weights take 75 % of 4.00 GiB",
    "sessions_over_time": "2 sessions hold a stream 67 % of the time",
    "queue_depth": "at most 2 requests wait, at 0.0 s",
    "bytes_over_time": "512.00 MiB used at most, of 1.00 GiB allocated",
    "ttft_by_candidate": "b answers soonest: first token within 3 s at p95",
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_title_says_the_finding(name: str) -> None:
    assert getattr(charts, name)(FRAMES[name]).title == TITLES[name]


@pytest.mark.parametrize("name", FRAMES)
def test_every_chart_draws_full_and_empty_frames(name: str) -> None:
    for frame in (FRAMES[name], FRAMES[name].clear()):
        svg = charts.to_svg(getattr(charts, name)(frame))
        assert svg.startswith("<svg")
        assert "NaN" not in svg


@pytest.mark.parametrize("name", FRAMES)
def test_every_number_axis_has_a_title_with_its_unit(name: str) -> None:
    spec = getattr(charts, name)(FRAMES[name]).to_dict()
    layers = [spec, *spec.get("layer", [])]
    axes = [
        channel
        for layer in layers
        for key, channel in layer.get("encoding", {}).items()
        if key in {"x", "y"} and channel["type"] == "quantitative" and "title" in channel
    ]
    assert axes
    units = ("(GiB)", "(s)", "(s, log)", "(requests)", "requests")
    assert all(axis["title"].endswith(units) for axis in axes)


def test_a_memory_chart_says_what_is_left_and_what_is_too_much() -> None:
    frame = FRAMES["memory_by_term"]
    assert charts.memory_by_term(frame, limit_bytes=5 * GIB).title.endswith("1.00 GiB left")
    assert charts.memory_by_term(frame, limit_bytes=3 * GIB).title.endswith("1.00 GiB too much")


def test_every_session_has_its_row_also_an_idle_one() -> None:
    chart = charts.sessions_over_time(FRAMES["sessions_over_time"], sessions=["64K", "16K", "8K"])
    svg = charts.to_svg(chart)
    assert all(f">{name}</text>" in svg for name in ("1: 64K", "2: 16K", "3: 8K"))
    assert chart.title == "3 sessions hold a stream 44 % of the time"


def test_thinning_keeps_every_peak_and_the_order() -> None:
    frame = pl.DataFrame({"time_s": [i / 7 for i in range(5000)], "waiting": list(range(5000))})
    peak = frame.with_columns(
        pl.when(pl.col("waiting") == 1234).then(9999).otherwise("waiting").alias("waiting")
    )
    thin = charts.thinned(peak, num_points=100)
    assert thin.height <= 100
    assert thin["waiting"].max() == 9999
    assert thin["time_s"].is_sorted()


def test_setup_needs_no_network_and_draws_png() -> None:
    before = alt.renderers.active
    try:
        charts.setup()
        bundle = charts.queue_depth(FRAMES["queue_depth"])._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert list(data) == ["image/png"]
        assert alt.JupyterChart._is_offline
    finally:
        alt.renderers.enable(before)
