"""The view wires fields, slider, clicks and texts to the state; no screen is needed to try."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.widgets.lab_state import LabState
from qwisp.widgets.lab_view import LabView, show_lab
from qwisp.widgets.scenario import Scenario


@pytest.fixture
def lab() -> LabView:
    return show_lab(layout="65536,32768x3,16384x11")


def _click(lab: LabView, request_id: int, policy: str = "A") -> None:
    """Say what the browser says after a click on a bar."""
    store = [{"unit": "x", "fields": [{"field": "id", "type": "E"}], "values": [request_id]}]
    picked = {"value": {"id": [request_id], "vlPoint": {"or": [{"id": request_id}]}}}
    lab.chart._vl_selections = {f"picked{policy}": picked | {"store": store}}


def test_the_label_and_the_rule_follow_the_slider(lab: LabView) -> None:
    assert "At 0.0 s" in lab.finding.value
    lab.time.value = 9800.0
    assert lab.state.at_s == 9800.0
    assert lab.state.at(9800.0).finding in lab.finding.value
    assert lab.chart.params.t == 9800.0
    assert lab.chart._params["t"] == 9800.0  # what the browser is told
    assert lab.waits.value.count("<tr>") - 1 == len(lab.state.at().waits) == 5
    assert "a free session of" in lab.waits.value


def test_every_field_reaches_the_scenario_and_a_new_run_is_drawn(lab: LabView) -> None:
    spec, finding = lab.chart.spec, lab.finding.value
    lab.time.value = 9800.0
    lab.fields["layout"].value = "16384x4"
    assert lab.state.scenario.layout == "16384x4"
    assert lab.chart.spec != spec
    assert lab.finding.value != finding
    assert lab.state.at_s == 9800.0  # the time stays
    for name, field in lab.fields.items():
        assert field.value == getattr(lab.state.scenario, name)


def test_bad_input_is_shown_as_two_lines_and_nothing_stale_beside_it(lab: LabView) -> None:
    lab.time.value = 9800.0
    lab.fields["layout"].value = "16384x4,<b>"
    assert "item 2 of the session list" in lab.error.value
    assert "<br>" in lab.error.value
    assert "&lt;b&gt;" in lab.error.value
    for label in (lab.finding, lab.waits, lab.verdict, lab.life, lab.commands):
        assert label.value == ""
    assert lab.chart.spec is None
    lab.time.value = 100.0  # and nothing happens
    lab.zoom.value = 600.0
    lab.request.value = "3"
    assert lab.finding.value == ""
    lab.fields["layout"].value = "16384x4"
    assert lab.error.value == ""
    assert lab.chart.spec is not None
    assert lab.finding.value


def test_a_click_tells_the_life_of_that_request(lab: LabView) -> None:
    _click(lab, 64)
    assert lab.request.value == "64"
    assert "arrives: 23,233 prompt tokens" in lab.life.value
    assert "paused at 32,768 tokens" in lab.life.value
    lab.request.value = "99999"
    assert "request 99999 is not in this run" in lab.life.value
    lab.request.value = "seven"
    assert "not in this run" in lab.life.value
    lab.request.value = ""
    assert lab.life.value == ""


def test_clicks_are_heard_after_the_chart_was_drawn_anew(lab: LabView) -> None:
    lab.fields["layout_b"].value = "4096x12,16384x2"
    _click(lab, 19, policy="B")
    assert lab.request.value == "B:19"
    assert "session 15 of 16,384 tokens" in lab.life.value


def test_two_policies_show_both_findings_and_the_difference(lab: LabView) -> None:
    lab.fields["layout_b"].value = "whole_window:2"
    lab.time.value = 9800.0
    assert "A: At 9,800.0 s" in lab.finding.value
    assert "B: At 9,800.0 s" in lab.finding.value
    assert lab.state.comparison().finding in lab.verdict.value
    assert lab.commands.value.count("<pre>qwisp replay") == 2
    assert set(lab.chart.selections.trait_names()) == {"pickedA", "pickedB"}
    lab.fields["layout_b"].value = ""
    assert "A: At" not in lab.finding.value


def test_a_narrower_view_is_drawn_once_per_window(lab: LabView) -> None:
    lab.time.value = 9000.0
    lab.zoom.value = 3600.0
    spec = lab.chart.spec
    lab.time.value = 9100.0
    assert lab.chart.spec is spec
    lab.time.value = 20000.0
    assert lab.chart.spec is not spec
    assert "[18000.0, 21600.0]" in str(lab.chart.spec)


def test_a_copied_scenario_opens_the_same_lab(lab: LabView) -> None:
    lab.fields["order"].value = "sjf"
    lab.time.value = 5000.0
    other = LabView(LabState(Scenario(layout="16384x4")))
    other.scenario.value = "lab.html#" + lab.scenario.value
    assert other.state.scenario == lab.state.scenario
    assert other.time.value == pytest.approx(5000.0)
    assert other.finding.value == lab.finding.value
    other.scenario.value = "v9&layout=1"
    assert "scenario string" in other.error.value


def test_a_time_after_the_end_of_a_shorter_run_is_its_end(lab: LabView) -> None:
    lab.time.value = lab.time.max
    lab.fields["rate"].value = "10x"
    assert lab.time.value == lab.time.max == lab.state.at_s
    assert lab.error.value == ""


def test_without_a_screen_the_lab_is_its_finding(lab: LabView) -> None:
    assert repr(lab) == lab.state.finding()
    lab.fields["rate"].value = "soon"
    assert "soon" in repr(lab)


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="no field 'speed'"):
        show_lab(speed="2x")


def test_a_lab_is_saved_as_the_page_of_its_state(lab: LabView, tmp_path) -> None:
    lab.time.value = 9800.0
    text = lab.save_html(tmp_path / "lab.html", num_times=3).read_text("utf-8")
    assert lab.state.scenario.to_string() in text
    assert lab.state.run_a.summary.verdict in text
