"""The frontier chart: curves that meet where the machine ends, and a title that is true."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest

from qwisp import charts
from qwisp.charts.shared_prefix import frontier_frame, shared_prefix_frontier
from qwisp.memory.shared_prefix import SharedPrefix

BAR = Fraction(1, 10)
SERVER = SharedPrefix(base_bytes=100_000, fixed_bytes=100, row_bytes=1)


def frame(limit_bytes: int, most_tokens: int = 64_000) -> pl.DataFrame:
    return frontier_frame(
        SERVER, [2, 4], bar=BAR, limit_bytes=limit_bytes, most_tokens=most_tokens, num_points=9
    )


def test_both_parts_of_a_curve_meet_at_the_last_length_that_fits():
    rows = frame(150_000)
    for lanes in (2, 4):
        mine = rows.filter(pl.col("lanes") == str(lanes))
        last = SERVER.largest_tokens(lanes, 150_000)
        assert mine.filter(fits="fits")["shared_tokens"].max() == last
        assert mine.filter(fits="does not fit")["shared_tokens"].min() == last
        for tokens, share in mine.select("shared_tokens", "share").rows():
            assert share == float(SERVER.share(lanes, tokens))


def test_where_everything_fits_nothing_is_dashed():
    assert frame(10**9)["fits"].unique().to_list() == ["fits"]


@pytest.mark.parametrize(
    ("limit_bytes", "title"),
    [
        (10**9, "in 4 lanes, copies reach 10 % of the peak at 4,096 shared tokens"),
        (105_000, "no length that fits makes copies 10 % of the peak"),
    ],
)
def test_the_title_says_whether_the_bar_is_passed(limit_bytes, title):
    chart = shared_prefix_frontier(frame(limit_bytes), bar=BAR, point=(1000, 0.02))
    assert chart.title == title
    assert charts.to_svg(chart).startswith("<svg")
