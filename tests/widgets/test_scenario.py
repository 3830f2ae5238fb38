"""A scenario survives its short form, refuses foreign ones by name, and equals its command line."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import string
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwisp.cli import main
from qwisp.errors import BadInput
from qwisp.widgets.question import replay_scenario
from qwisp.widgets.scenario import MAX_CHARS, Scenario, bundled_traces

TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=40).filter(
    lambda text: text.isprintable() and not text.strip().lower().endswith(".py")
)
FIELDS = st.dictionaries(st.sampled_from([f.name for f in fields(Scenario)]), TEXT, max_size=6)


@given(FIELDS)
def test_any_scenario_survives_its_string(changes: dict[str, str]) -> None:
    scenario = Scenario(**changes)
    text = scenario.to_string()
    assert set(text) <= set(string.ascii_letters + string.digits + "-._~%&=+")
    assert Scenario.from_string(text) == scenario
    assert Scenario.from_string(f"twin.html#{text}") == scenario


def test_version_1_means_these_defaults_for_ever() -> None:
    assert asdict(Scenario.from_string("v1")) == {
        "model": "qwen3.6-35b-a3b",
        "machine": "m1-max-64gb",
        "memory": "12GiB",
        "trace": "agents",
        "layout": "65536,32768x3,16384x11",
        "order": "fcfs",
        "budget": "",
        "context": "",
        "grow": "",
        "rate": "1x",
        "max_new": "unset",
        "layout_b": "",
        "context_b": "",
        "order_b": "",
        "budget_b": "",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "starts with ''"),
        ("v2&layout=1x2", "v2"),
        ("layout=1x2", "layout=1x2"),
        ("v1&layout", "layout"),
        ("v1&colour=red", "colour"),
        ("v1&layout=1x2&layout=1x3", "twice"),
        ("v1&layout=%ff", "codec"),
        ("v1&layout=1%0a2", "control"),
        ("v1&" + "&".join(["rate=1x"] * 99), "fields"),
        ("v1&layout=" + "9" * MAX_CHARS, f"{MAX_CHARS + 10} characters"),
        ("v1&order=policy.py", "policy.py"),
        ("v1&order_b=/tmp/Policy.PY", "Policy.PY"),
    ],
)
def test_a_bad_string_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        Scenario.from_string(text)


@given(st.text(max_size=60))
def test_no_string_raises_anything_else(text: str) -> None:
    for candidate in (text, "v1&" + text, "v1&layout=" + text):
        with contextlib.suppress(BadInput):
            Scenario.from_string(candidate)


def test_policy_b_is_policy_a_where_nothing_else_is_said() -> None:
    scenario = Scenario(layout="16384x4", order_b="sjf", rate="0.5x")
    assert scenario.has_b
    assert scenario.b == Scenario(layout="16384x4", order="sjf", rate="0.5x")
    assert scenario.a == Scenario(layout="16384x4", rate="0.5x")
    assert not scenario.a.has_b


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(layout="4096x12,16384x2", rate="2x", max_new="oracle"),
        Scenario(layout="per_request:4GiB", order="first_fit", budget="2048", grow="256"),
        Scenario(layout="16384x6", context="16K", memory="20%"),
    ],
    ids=lambda s: s.layout,
)
def test_the_command_line_answers_the_same_question(scenario: Scenario, capsys) -> None:
    words = shlex.split(scenario.command())
    assert words[0] == "qwisp"
    assert main([*words[1:], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    summary = replay_scenario(scenario)[0].summary
    assert document["layout"] == scenario.layout
    for name in ("finished", "refused", "truncated", "moves", "pauses", "waits_by_binding"):
        assert document[name] == getattr(summary, name)
    assert document["ttft_s"]["p95"] == summary.ttft_s.p95


def test_bundled_traces_are_known_by_name() -> None:
    assert "agents" in bundled_traces()
    assert Scenario(trace="agents").trace_path.endswith("agents.jsonl")
    assert Scenario(trace="other.csv").trace_path == "other.csv"
