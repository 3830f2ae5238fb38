"""`--prefix SIZE`: a store beside the sessions, shown in words and in the document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.cli import main

TRACE = str(Path(__file__).resolve().parents[2] / "data" / "traces" / "agents.jsonl")
WORDS = ["--model=qwen3.6-35b-a3b", "--machine=m1-max-64gb", "--memory=20GiB"]
REPLAY = ["replay", *WORDS, f"--trace={TRACE}", "--layout=65536,32768x3,16384x11"]


def replayed(capsys, *more: str) -> dict:
    assert main([*REPLAY, *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_says_what_the_store_did_and_what_it_may_hold(capsys) -> None:
    document = replayed(capsys, "--prefix=8GiB")
    use = document["prefix"]
    assert use["limit_bytes"] == 8 * 2**30 == document["settings"]["prefix_bytes"]
    assert use["shared_bytes"] <= use["limit_bytes"] // 3
    assert use["shared_bytes"] + use["conversation_bytes"] <= use["limit_bytes"]
    assert use["cached"] == document["cached"] > 0.5
    assert use["restores"] > 100
    assert use["waits"] == document["waits_by_binding"]["prefix in flight"]
    assert document["settings"]["boundary_tokens"] == document["settings"]["prefix_step_tokens"]


def test_without_the_option_there_is_no_store(capsys) -> None:
    document = replayed(capsys)
    assert document["prefix"] is None
    assert document["cached"] == 0


def test_the_boundary_is_configuration(capsys) -> None:
    document = replayed(capsys, "--prefix=8GiB", "--prefix-boundary=1")
    assert document["settings"]["boundary_tokens"] == 1


def test_the_reader_is_told_that_its_bytes_come_on_top(capsys) -> None:
    assert main([*REPLAY, "--prefix=8GiB"]) == 0
    assert "8.00 GiB come beside the sessions' memory" in capsys.readouterr().out


def test_a_plan_with_a_store_hands_it_on_to_the_replay(capsys) -> None:
    assert main(["plan", *WORDS, f"--trace={TRACE}", "--layout=32768x8", "--prefix=4GiB"]) == 0
    assert "--prefix 4GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--prefix-boundary=64"], "a prefix boundary without a store"),
        (["--prefix=0"], "size '0' is 0 bytes"),
        (["--prefix=8GiB", "--prefix-boundary=0"], "0"),
        (["--prefix=20%"], "is a share of nothing"),
    ],
)
def test_half_an_answer_is_refused(capsys, words: list[str], what: str) -> None:
    assert main([*REPLAY, *words]) == 2
    assert what in capsys.readouterr().err


def test_a_trace_without_prefixes_is_refused(tmp_path, capsys) -> None:
    trace = tmp_path / "plain.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n")
    assert main(["replay", *WORDS, f"--trace={trace}", "--prefix=1GiB"]) == 2
    assert "names no prefixes" in capsys.readouterr().err
