"""A shared picture carries its finding, machine, receipt and command, as text and not as markup."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import polars as pl
import pytest

from qwisp.charts import queue_depth
from qwisp.errors import BadInput
from qwisp.receipts.stamp import Stamp
from qwisp.report import share
from qwisp.report.share import origin

CHART = queue_depth(pl.DataFrame({"time_s": [0.0, 1.0], "waiting": [1, 2]}))
STAMP = Stamp(
    machine=(
        ("system", "Box 1"),
        ("architecture", "b64"),
        ("processor", "Beads"),
        ("cores", "2"),
        ("memory_bytes", str(4 * 2**30)),
        ("python", "3.11"),
    ),
    packages=(("qwisp", "9.9"),),
    commit="0123456789abcdef",
    is_dirty=True,
)


def test_the_picture_says_finding_machine_receipt_and_command(tmp_path: Path) -> None:
    path = share(CHART, tmp_path / "a.svg", command="qwisp replay --x <b>", receipt="s3-0012")
    svg = path.read_text()
    for text in ("at most 2 requests wait", "receipt s3-0012", "$ qwisp replay --x &lt;b&gt;"):
        assert text in svg
    assert origin()[1] in svg
    assert "<b>" not in svg


def test_a_finding_of_ones_own_replaces_the_title_and_the_chart_stays_as_it_was(tmp_path) -> None:
    svg = share(CHART, tmp_path / "a.svg", command="x", finding="two is company").read_text()
    assert "two is company" in svg
    assert "at most 2" not in svg
    assert CHART.title == "at most 2 requests wait, at 1.0 s"


def test_png_is_a_picture(tmp_path: Path) -> None:
    assert share(CHART, tmp_path / "a.png", command="x").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_origin_names_the_machine_and_whether_the_source_was_changed() -> None:
    assert origin(STAMP) == [
        "computed on Beads, 2 cores, 4 GiB, Box 1",
        "qwisp 9.9, commit 0123456789ab, changed since",
    ]


@pytest.mark.parametrize("name", ["a.pdf", "a", "absent/a.png"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput):
        share(CHART, tmp_path / name, command="x")


def test_a_chart_without_a_finding_is_refused(tmp_path: Path) -> None:
    bare = alt.Chart(pl.DataFrame({"a": [1]})).mark_bar().encode(x="a:Q")
    with pytest.raises(BadInput, match="no finding"):
        share(bare, tmp_path / "a.svg", command="x")
