"""`qwisp replay`: one candidate with its settings, the same bytes every time, proofs on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwisp.cli import main

TRACE = str(Path(__file__).resolve().parents[2] / "data" / "traces" / "agents.jsonl")
LAYOUT = "65536,32768x3,16384x11"
WORDS = [
    "replay",
    "--model=qwen3.6-35b-a3b",
    "--machine=m1-max-64gb",
    f"--trace={TRACE}",
    f"--layout={LAYOUT}",
]


def test_a_layout_that_does_not_fit_is_an_infeasible_row_with_its_bytes(capsys) -> None:
    assert main([*WORDS, "--memory=2GiB", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["feasible"] is False
    assert document["bytes"] > document["memory_bytes"] == 2 * 2**30
    assert document["finished"] is document["verdict"] is None
    assert f"{document['bytes']:,}" in document["why"]
    assert "verdict: infeasible" in err
    assert "next: give --memory" in err


def test_the_document_is_one_candidate_with_its_settings_and_no_time_of_qwisp(capsys) -> None:
    assert main([*WORDS, "--memory=12GiB", "--order=first_fit", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["settings"]["order"] == "first_fit"
    assert document["requests"] == 373
    assert sum(document[k] for k in ("finished", "refused", "failed", "cancelled")) == 373
    assert document["stall_rounds"]["max"] >= document["stall_rounds"]["p50"] > 0
    assert "CPU" in err
    assert "CPU" not in out


def test_two_processes_with_other_hash_seeds_print_the_same_bytes() -> None:
    printed = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "qwisp", *WORDS, "--memory=12GiB", "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    assert len(printed.pop()) > 1000


def test_closed_form_and_single_steps_are_compared_and_the_trace_events_written(
    tmp_path, capsys
) -> None:
    path = tmp_path / "events.json"
    assert main([*WORDS, "--memory=12GiB", "--check-stepwise", f"--chrome-trace={path}"]) == 0
    assert "closed form equals single steps" in capsys.readouterr().out
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["ph"] == "M" for event in events) == 16  # a row a session
    assert {event["name"].split()[0] for event in events if event["ph"] == "X"} >= {"0", "372"}


@pytest.mark.parametrize("words", [["--sustain", "--rate=1x"], ["--slo-ttft=3"]])
def test_options_that_need_or_exclude_another_say_so(words: list[str], capsys) -> None:
    assert main([*WORDS, "--memory=12GiB", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2


def test_sustain_says_that_a_last_burst_has_no_rate_and_replays_what_it_confirmed(
    tmp_path, capsys
) -> None:
    """40 requests with time to spare; with 30 more at once behind them no rate is stable."""
    spaced = [(i * 30, 3000, 300) for i in range(40)]
    for name, rows, code in (
        ("burst", [*spaced, *[(1200, 3000, 300)] * 30], 1),
        ("none", spaced, 0),
    ):
        path = tmp_path / f"{name}.jsonl"
        keys = ("arrival_s", "prompt_tokens", "output_tokens")
        path.write_text(
            "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
        )
        words = [*WORDS[:3], f"--trace={path}", "--memory=12GiB", "--layout=16384x2", "--sustain"]
        assert main(words) == code
        out, err = capsys.readouterr()
        if code:
            assert out == ""
            assert "no rate keeps all 70 requests stable" in err
            assert "the first 40, before the last burst, are stable at" in err
        else:
            rate = err.split("sustains ")[1].split("x")[0]
            assert "confirmed on all 40 requests" in err
            assert f"verdict: stable at {rate}x" in out


def test_a_cut_of_ones_own_is_one_file(tmp_path, capsys) -> None:
    path = tmp_path / "largest.py"
    path.write_text(
        "def place(rows, free):\n"
        "    return max((run for run in free if len(run) >= rows), key=len, default=None)\n"
    )
    found = {}
    for cut in ("smallest_fit", str(path)):
        assert main([*WORDS, "--memory=12GiB", f"--cut={cut}", "--json"]) == 0
        found[cut] = json.loads(capsys.readouterr().out)
        assert found[cut]["cut"] == cut
        assert found[cut]["requests"] == 373
    # Who starts in the largest session outgrows it less often.
    assert found[str(path)]["moves"] < found["smallest_fit"]["moves"]
    assert main([*WORDS, "--memory=12GiB", "--cut=none"]) == 2
    assert "cut 'none' is not known" in capsys.readouterr().err


def test_every_refusal_is_named_with_its_numbers(capsys) -> None:
    small = [*WORDS[:-1], "--layout=4096x12,16384x2", "--memory=12GiB"]
    assert main([*small, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["refusals_by_binding"] == {"no free session large enough": document["refused"]}
    line = next(line for line in err.splitlines() if line.startswith("refused for"))
    assert f": {document['refused']}; " in line
    assert "32,768 is the most a place here holds" in line
    assert "would fit" in line


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_lengths_given_away_are_called_clairvoyant(command: str, capsys) -> None:
    words = [command, *WORDS[1:], "--memory=12GiB", "--rate=1x"]
    for max_new in ("oracle", "unset"):
        assert main([*words, f"--max-new={max_new}", "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["max_new"] == max_new
        assert ("clairvoyant" in err) == (max_new == "oracle")
