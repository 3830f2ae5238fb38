"""Charts of the lab: the parameter moves rule and outline, and every frame is drawn, empty too."""

from __future__ import annotations

import json
import re

import altair as alt
import polars as pl
import pytest

from qwisp.charts import lab, to_svg
from qwisp.charts.lab_page import Shown, slider_page

SEGMENTS = pl.DataFrame(
    {
        "id": [7, 7, 8],
        "slot": [1, 0, 1],
        "phase": ["decode", "decode", "prefill"],
        "begin_s": [0.0, 4.0, 5.0],
        "end_s": [4.0, 10.0, 8.0],
        "moved": [False, True, False],
    }
)
QUEUE = pl.DataFrame(
    {
        "time_s": [0.0, 1.0, 3.0],
        "waiting_a": [0, 5, 1],
        "waiting_b": [0, 2, 4],
        "difference": [0, -3, 3],
    }
)
CURVE = pl.DataFrame(
    {"policy": ["A", "A", "B"], "ttft_s": [1.0, 4.0, 2.0], "share": [0.5, 1.0, 0.5]}
)
REQUESTS = pl.DataFrame(
    {
        "id": [1, 2, 3],
        "arrival_s": [0.0, 1.0, 2.0],
        "ttft_a_s": [1.0, 5.0, None],
        "ttft_b_s": [2.0, 2.0, 2.0],
        "difference_s": [1.0, -3.0, None],
    }
)
OUTLINE = re.compile(r'stroke="#000" stroke-width="1.5"')


def _at(at_s: float) -> str:
    chart = lab.sessions_at(SEGMENTS, sessions=["4,096", "8,192"])
    return to_svg(lab.over_time([chart], at_s=at_s, window=(0.0, 10.0)))


@pytest.mark.parametrize(("at_s", "streams"), [(0.0, 1), (3.9, 1), (4.0, 1), (6.0, 2), (9.0, 1)])
def test_the_streams_at_that_time_are_outlined(at_s: float, streams: int) -> None:
    assert len(OUTLINE.findall(_at(at_s))) == streams


def test_moves_are_ticks_and_counted_in_the_title() -> None:
    chart = lab.sessions_at(SEGMENTS, policy="B", named=True)
    assert chart.title.startswith("B: 2 sessions hold a stream")
    assert chart.title.endswith("; pink: 1 moves")
    assert _at(5.0).count("#CC79A7") == 1


def test_the_parameter_and_the_clicks_reach_the_widget() -> None:
    charts = [lab.sessions_at(SEGMENTS, policy=policy) for policy in "AB"]
    live = lab.live(lab.over_time(charts, at_s=2.5, window=(0.0, 10.0)))
    assert live.params.t == 2.5
    assert set(live.selections.trait_names()) == {"pickedA", "pickedB"}
    assert live.embed_options["renderer"] == "svg"


def test_rows_are_written_once_whatever_is_layered() -> None:
    chart = lab.sessions_at(SEGMENTS)
    whole = lab.over_time([chart], at_s=0.0, window=(0.0, 10.0), below=[lab.ttft_curve(CURVE)])
    spec = whole.to_dict()
    sizes = sorted(len(rows) for rows in spec["datasets"].values())
    assert sizes == [1, 3, 3]  # the one is the rule
    assert json.dumps(spec).count('"begin_s": 4.0') == 1


def test_time_axes_show_the_window_and_no_more() -> None:
    window = (4.0, 9.0)
    whole = lab.over_time([lab.two_queues(QUEUE)], at_s=5.0, window=window)
    assert '"domain": [4.0, 9.0]' in json.dumps(whole.to_dict())


def test_titles_say_the_finding() -> None:
    assert lab.two_queues(QUEUE).title == (
        "at most 5 requests wait under A, 4 under B; grey: B less A"
    )
    assert lab.ttft_curve(CURVE).title.endswith("1.0 s under A, 2.0 s under B")
    assert lab.ttft_difference(REQUESTS).title == "B answers 1 of 2 requests sooner, 1 later"


def test_many_dots_are_thinned_and_the_title_says_so_and_counts_all() -> None:
    num = 2500
    frame = pl.DataFrame(
        {
            "id": range(num),
            "arrival_s": [float(i) for i in range(num)],
            "ttft_a_s": [2.0] * num,
            "ttft_b_s": [1.0] * num,
            "difference_s": [-1.0] * num,
        }
    )
    chart = lab.ttft_difference(frame)
    assert chart.title == "B answers 2,500 of 2,500 requests sooner, 0 later (one in 3 drawn)"
    assert chart.data.height == 834
    curve = pl.DataFrame(
        {
            "policy": ["A"] * num,
            "ttft_s": [float(i + 1) for i in range(num)],
            "share": [(i + 1) / num for i in range(num)],
        }
    )
    drawn = lab.ttft_curve(curve).data
    assert drawn.height <= lab.MAX_DOTS
    assert drawn["share"].max() == 1.0


@pytest.mark.parametrize(
    "chart",
    [
        lab.sessions_at(SEGMENTS.clear(), sessions=["4,096"]),
        lab.two_queues(QUEUE.clear()),
        lab.ttft_curve(CURVE.clear()),
        lab.ttft_difference(REQUESTS.clear()),
    ],
    ids=["sessions", "queues", "curve", "difference"],
)
def test_an_empty_frame_is_drawn(chart: alt.TopLevelMixin) -> None:
    svg = to_svg(lab.over_time([chart], at_s=0.0, window=(0.0, 1.0)))
    assert "NaN" not in svg


def test_no_text_of_a_trace_can_end_the_pages_script() -> None:
    evil = "</script><script>alert(1)</script>"
    shown = Shown(at_s=0.0, finding=evil, waits=[[evil]], more=0)
    chart = lab.over_time([lab.two_queues(QUEUE)], at_s=0.0, window=(0.0, 3.0))
    page = slider_page(
        chart, [shown], start=0, title=evil, summary=evil, commands=[evil], scenario=evil
    )
    assert "<script>alert" not in page
    assert "default-src 'none'" in page
