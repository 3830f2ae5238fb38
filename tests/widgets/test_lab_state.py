"""The lab's state, without a kernel: bad input is text, runs are kept, policies are compared."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.errors import BadInput
from qwisp.widgets.lab_state import MAX_BARS, LabState
from qwisp.widgets.scenario import Scenario


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("model", "gpt-17", "gpt-17"),
        ("model", "x" * 5000, "xxx"),
        ("order", "x" * 5000 + ".py", "File name too long"),
        ("machine", "abacus", "abacus"),
        ("machine", "m4-16gb", "m4-16gb"),  # nobody measured times there
        ("memory", "12 parsecs", "parsecs"),
        ("memory", "1MiB", "above the 1.00 MiB"),
        ("trace", "missing.csv", "missing.csv"),
        ("trace", "/", "directory"),
        ("trace", "a\0b", "cannot be read"),
        ("trace", "", "--trace"),
        ("layout", "", "''"),
        ("layout", "65536,,16384", "item 2"),
        ("layout", "16384x999999", "999999"),
        ("layout", "1," * 2000, "characters"),
        ("order", "lifo", "lifo"),
        ("budget", "-1", "-1"),
        ("grow", "many", "many"),
        ("context", "0", "0"),
        ("rate", "fast", "fast"),
        ("max_new", "several", "several"),
        ("layout_b", "16384x9999", "9999"),
        ("order_b", "lifo", "lifo"),
    ],
)
def test_a_bad_field_is_two_lines_of_text(field: str, text: str, says: str) -> None:
    state = LabState()
    state.set(**{field: text})
    first, second = state.error.split("\n")
    assert says in first
    assert second


def test_a_machine_nobody_measured_still_tells_its_memory_and_prints_nothing(capsys) -> None:
    state = LabState(Scenario(machine="m4-16gb"))
    assert "memory for sessions: 12.00 GiB on m4-16gb" in state.error.split("\n")[0]
    assert "qwisp calibrate" in state.error.split("\n")[1]
    assert capsys.readouterr() == ("", "")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["memory", "layout", "order", "budget", "grow", "context", "rate", "max_new"]),
    st.text(max_size=12).filter(lambda text: not text.strip().endswith(".py")),
)
def test_nothing_typed_raises(field: str, text: str) -> None:
    state = LabState(Scenario(layout="16384x2"))
    state.set(**{field: text})
    assert state.error == "" or len(state.error.split("\n")) == 2


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(BadInput, match="no field 'colour'"):
        LabState().set(colour="red")


def test_equal_scenarios_share_one_run_and_a_change_makes_another() -> None:
    one, two = LabState(), LabState()
    assert one.run_a is two.run_a
    two.set(layout="16384x4")
    assert two.run_a is not one.run_a
    two.set(layout=one.scenario.layout)
    assert two.run_a is one.run_a


def test_a_changed_trace_file_is_read_again(tmp_path) -> None:
    path = tmp_path / "own.jsonl"
    line = '{{"id": {0}, "arrival_s": {0}, "prompt_tokens": 100, "output_tokens": 10}}\n'
    path.write_text(line.format(1))
    state = LabState(Scenario(trace=str(path), layout="4096x2"))
    assert state.run_a.summary.requests == 1
    path.write_text(line.format(1) + line.format(2))
    os.utime(path, ns=(1, 1))
    assert state.run_a.summary.requests == 2


def test_state_survives_its_string_with_the_time() -> None:
    state = LabState(Scenario(layout="16384x4", layout_b="8192x8"), at_s=1234.5)
    again = LabState.from_string("lab.html#" + state.to_string())
    assert again.scenario == state.scenario
    assert again.at_s == 1234.5
    assert LabState.from_string("v1").at_s == 0.0
    with pytest.raises(BadInput):
        LabState.from_string("v1&t=soon")


def test_two_policies_are_compared_request_by_request() -> None:
    state = LabState(Scenario(layout="16384x6", context="32768", layout_b="whole_window:2"))
    found = state.comparison()
    a, b = state.run_a.requests, state.run_b.requests
    assert found.requests.height == a.height
    for row in found.requests.head(50).iter_rows(named=True):
        ttft = [f.filter(pl.col("id") == row["id"])["ttft_s"][0] for f in (a, b)]
        assert [row["ttft_a_s"], row["ttft_b_s"]] == ttft
        if None not in ttft:
            assert row["difference_s"] == round(ttft[1] - ttft[0], 3)
    queue = found.queue
    for name, run in (("a", state.run_a), ("b", state.run_b)):
        assert queue[f"waiting_{name}"].max() == run.load["waiting"].max()
        # Waiting requests over time add up to the time spent waiting.
        gaps = queue["time_s"].diff().shift(-1).fill_null(0.0)
        waited = (gaps * queue[f"waiting_{name}"]).sum()
        assert math.isclose(waited, run.requests["queue_s"].sum(), rel_tol=1e-9)  # float sums
    assert f"{state.run_b.summary.ttft_s.p95:,.1f} s under B" in found.finding
    assert state.finding().startswith("A: At")
    assert "\nB: At" in state.finding()


def test_a_comparison_where_nothing_differs_says_so() -> None:
    state = LabState(Scenario(order_b="fcfs"))
    assert "do not differ" in state.comparison().finding
    assert set(state.comparison().requests["difference_s"].drop_nulls()) == {0.0}


def test_one_policy_is_no_comparison() -> None:
    state = LabState()
    assert state.comparison() is None
    assert state.run_b is None
    assert len(state.commands()) == 1
    with pytest.raises(BadInput, match="no policy 'B'"):
        state.at(5.0, policy="B")


def test_a_window_stays_while_the_time_moves_within_it() -> None:
    state = LabState()
    assert state.window() == (0.0, state.span_s)
    state.at_s = 4000.0
    assert state.window(3600.0) == (3600.0, 7200.0)
    state.at_s = 7199.0
    assert state.window(3600.0) == (3600.0, 7200.0)
    state.at_s = state.span_s
    begin_s, end_s = state.window(3600.0)
    assert begin_s < state.span_s <= end_s


def test_a_window_gets_narrower_until_its_bars_can_be_drawn(monkeypatch) -> None:
    state = LabState(at_s=9000.0)
    assert state.run_a.segments.height <= MAX_BARS
    monkeypatch.setattr("qwisp.widgets.lab_state.MAX_BARS", 40)
    window = state.window()
    assert window[0] <= 9000.0 < window[1]
    assert 0 < state.segments(window).height <= 40


def test_frames_of_a_window_lie_inside_and_begin_with_what_was_before() -> None:
    state = LabState(at_s=9000.0)
    window = (9000.0, 9600.0)
    bars, load = state.segments(window), state.load(window)
    assert bars["begin_s"].min() >= 9000.0
    assert bars["end_s"].max() <= 9600.0
    assert load["time_s"][0] == 9000.0
    assert load["waiting"][0] == state.at().num_waiting
    assert load["time_s"].is_sorted()


def test_the_first_token_curve_ends_at_the_share_that_was_answered() -> None:
    state = LabState(Scenario(layout="4096x12,16384x2", layout_b="whole_window:2"))
    curve = state.ttft()
    for name, run in state.runs.items():
        part = curve.filter(pl.col("policy") == name)
        answered = run.requests["ttft_s"].drop_nulls()
        assert part.height == len(answered)
        assert part["share"][-1] == len(answered) / run.requests.height
        assert part["ttft_s"].is_sorted()


def test_the_state_needs_neither_widgets_nor_charts() -> None:
    code = (
        "import sys; from qwisp.widgets.lab_state import LabState; s = LabState(at_s=9e3);"
        "s.finding(); s.comparison();"
        "print(*({'ipywidgets', 'altair', 'anywidget', 'IPython'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
