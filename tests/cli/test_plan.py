"""`qwisp plan`: one document and nothing else, and a next step that can be typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from qwisp.cli import main

TRACE = str(Path(__file__).resolve().parents[2] / "data" / "traces" / "agents.jsonl")
WORDS = ["plan", "--model=qwen3.6-35b-a3b", f"--trace={TRACE}", "--rate=1x"]
M1 = [*WORDS, "--machine=m1-max-64gb", "--memory=12GiB"]


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_with_json_one_document_stands_on_stdout_and_nothing_else(command: str, capsys) -> None:
    assert main([command, *M1[1:], "--layout=16384x4", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)  # fails on a second document or a line beside it
    assert document["schema"] == f"qwisp-{command}-1"
    assert "why: " in err


def test_without_times_a_document_is_not_half_printed(capsys) -> None:
    assert main([*WORDS, "--machine=m4-16gb", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "memory for sessions: none; m4-16gb may use 11.20 GiB" in err


def test_the_next_step_runs_as_printed_and_finds_what_the_plan_found(capsys) -> None:
    layouts = ["--layout=65536,32768x3", "--layout=16384x4", "--context=64K", "--grow=4096"]
    assert main([*M1, *layouts, "--json"]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    step = next(line for line in err.splitlines() if line.startswith("next: "))
    words = shlex.split(step.removeprefix("next: "))
    assert words[:2] == ["qwisp", "replay"]
    assert main([*words[1:], "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    best = next(c for c in plan["candidates"] if c["layout"] == plan["best"])
    for name in ("layout", "bytes", "finished", "refused", "moves", "pauses", "ttft_s", "verdict"):
        assert alone[name] == best[name], name
    assert alone["settings"]["grow_tokens"] == 4096


def test_a_plan_in_which_nothing_fits_names_the_memory_that_would(capsys) -> None:
    small = ["--machine=m1-max-64gb", "--layout=16384x4", "--memory"]
    assert main([*WORDS, *small, "100MiB"]) == 0
    out = capsys.readouterr().out
    assert "verdict: infeasible" in out
    size = next(line for line in out.splitlines() if line.startswith("next: ")).split()[3]
    assert main([*WORDS, *small, size]) == 0
    assert "verdict: infeasible" not in capsys.readouterr().out
