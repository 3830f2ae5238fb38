"""A question: the memory left for sessions, what reading remarks, and a layout replayed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from qwisp.errors import BadInput, NotCalibrated
from qwisp.planner.candidates import replay_layout
from qwisp.planner.question import read_question, session_memory
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.data_files import data_path
from qwisp.trace.request import Request, Trace

MODEL, M1 = load_model("qwen3.6-35b-a3b"), load_machine("m1-max-64gb")


@pytest.mark.parametrize("prompt_tokens", [1, 4096, 43_529, 10**9])
def test_the_terms_and_what_is_left_are_what_the_machine_may_use(prompt_tokens: int) -> None:
    left, terms = session_memory(MODEL, M1, prompt_tokens)
    assert left + sum(term.num_bytes for term in terms) == M1.usable_bytes
    assert {term.name for term in terms} == {"weights", "runtime overhead", "prefill transient"}


def test_a_longer_prompt_to_come_leaves_less_by_its_transient_alone() -> None:
    (short, before), (long, after) = (session_memory(MODEL, M1, n) for n in (4096, 65_536))
    grown = {a.name: b.num_bytes - a.num_bytes for a, b in zip(before, after, strict=True)}
    assert {name for name, more in grown.items() if more} == {"prefill transient"}
    assert short - long == grown["prefill transient"] > 0


def test_a_machine_that_cannot_hold_the_model_has_nothing_left() -> None:
    with pytest.raises(BadInput, match=r"may use 11\.20 GiB, but qwen3\.6-35b-a3b takes"):
        session_memory(MODEL, load_machine("m4-16gb"))


QWEN = {"model": "qwen3.6-35b-a3b", "trace": data_path("traces", "agents.jsonl")}


def test_what_reading_left_out_is_returned_and_printed_by_nobody(tmp_path, capsys) -> None:
    trace = tmp_path / "torn.jsonl"
    trace.write_text(QWEN["trace"].read_text() + "{torn\n")
    question = read_question(
        model=MODEL.name, machine=M1.name, memory="12GiB", trace=trace, lenient=True
    )
    assert question.remarks == ("torn.jsonl: 1 lines skipped, 0 failed requests left out",)
    assert read_question(**QWEN, machine=M1.name).remarks == ()
    assert capsys.readouterr() == ("", "")


def test_without_times_the_error_says_what_is_known_of_the_memory(capsys) -> None:
    with pytest.raises(NotCalibrated) as named:
        read_question(**QWEN, machine="m4-16gb", memory="2GiB")
    assert named.value.remarks == ("memory for sessions: 2.00 GiB on m4-16gb",)
    with pytest.raises(NotCalibrated) as none:
        read_question(**QWEN, machine="m4-16gb")
    (remark,) = none.value.remarks
    assert remark.startswith("memory for sessions: none; m4-16gb may use 11.20 GiB, but ")
    assert capsys.readouterr() == ("", "")


def test_a_layout_that_is_too_large_has_its_bytes_and_no_run() -> None:
    question = read_question(**QWEN, machine=M1.name, memory="1GiB")
    found = replay_layout(question, "16384x4")
    assert not found.feasible
    # Four such sessions and the engine's own of 32K, each with 32 rows of margin and a fixed state.
    rows = 4 * (16384 + 32) + 32768 + 32
    assert found.num_bytes == rows * 20480 + 5 * 64_389_120 > question.memory_bytes
    assert replay_layout(replace(question, memory_bytes=found.num_bytes), "16384x4").feasible


def test_the_engines_own_session_stands_beside_a_list_and_each_lost_request_counts_once() -> None:
    whole, cut, refused = (100, 10, None), (100, 10, 4), (10**6, 10, None)
    asks = (Request(i, i * 10**9, *ask) for i, ask in enumerate((whole, cut, refused, cut)))
    asked = read_question(**QWEN, machine=M1.name, memory="12GiB", context="8K")
    asked = replace(asked, trace=Trace(name="made", requests=tuple(asks), source="made here"))
    run = replay_layout(asked, "4096x2,16384").run
    assert sorted(run.layout.contexts) == [4096, 4096, 8192, 16384]
    assert run.requests["produced_tokens"].to_list() == [10, 4, 0, 4]
    assert run.summary.lost == 3


def test_a_layout_is_replayed_at_the_rate_of_the_question_or_at_one_it_sustains() -> None:
    asked = read_question(**QWEN, machine=M1.name, memory="12GiB", rate="0.5x")
    assert replay_layout(asked, "16384x4").run.rate == Fraction(1, 2)
    easy = tuple(Request(i, i * 60 * 10**9, 100, 10) for i in range(20))
    asked = replace(asked, trace=Trace(name="easy", requests=easy, source="made here"))
    found = replay_layout(asked, "16384x4", find_rate=True)
    assert found.run.rate == found.sustained.rate > 1
    assert found.run.summary.verdict == "stable"
