"""Mooncake, BurstGPT, server logs and facts files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.errors import BadTrace
from qwisp.facts.file import (
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactsHeader,
    FailRecord,
    StopRecord,
    facts_lines,
    parse_facts,
)
from qwisp.trace.read import parse_trace, read_trace
from qwisp.trace.table import TableFormat


def jsonl(*records: object) -> bytes:
    return "\n".join(json.dumps(record) for record in records).encode()


@pytest.mark.truth
def test_mooncake_keeps_its_blocks_and_the_order_of_ties(traces_dir: Path) -> None:
    trace = read_trace(traces_dir / "mooncake_conversation.jsonl")
    assert len(trace.requests) == 12_031
    assert sum(len(request.prefix) for request in trace.requests) == 288_500
    assert trace.requests[1] == (1, 0, 7322, 490, None, (0, *range(14, 28)))
    assert all(request.prefix[0] == 0 for request in trace.requests)
    assert trace.span_ns == 3_536_999 * 10**6
    assert [request.id for request in trace.requests] == list(range(12_031))


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": 1.5}, "timestamp"),
        ({"input_length": 0}, "input_length"),
        ({"output_length": 0}, "output_length"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids"),
        ({"hash_ids": ["a"]}, "hash_ids"),
    ],
)
def test_mooncake_blames_the_key(changes: dict, column: str) -> None:
    good = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0]}
    with pytest.raises(BadTrace) as caught:
        parse_trace(jsonl(good, good | changes))
    assert (caught.value.line, caught.value.column) == (2, column)


BURST_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURST_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type,Total
5.0,aa-1,43,ChatGPT,472,18,490,Conversation log
45.25,,2,ChatGPT,1087,0,1087,Conversation log
118.0,bb,1,GPT-4,417,276,693,API log
"""


@pytest.mark.parametrize("text", [BURST_1, BURST_3, BURST_1.replace("\n", "\r\n")])
def test_burstgpt_columns_are_found_by_name_and_failures_counted(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    fast = parse_trace(text.encode())
    assert [request[:4] for request in fast.requests] == [
        (0, 0, 472, 18),
        (1, 113 * 10**9, 417, 276),
    ]
    assert (fast.num_failed, fast.num_skipped, fast.source) == (1, 0, "burstgpt")
    monkeypatch.setattr(TableFormat, "columns_at_once", lambda self, data: None)
    assert parse_trace(text.encode()) == fast


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("118,", "1e400,", 1),
        ("118,", "0x10,", 1),
        ("118,", "1_0,", 1),
        ("118,", "inf,", 1),
        ("118,", "44,", 1),
        (",417,", ",0,", 3),
        (",417,", ",-1,", 3),
        (",276,", ",-1,", 4),
        (",276,", ",2.5,", 4),
    ],
)
def test_burstgpt_blames_line_and_column(old: str, new: str, column: int) -> None:
    with pytest.raises(BadTrace) as caught:
        parse_trace(BURST_1.replace(old, new).encode())
    assert (caught.value.line, caught.value.column) == (4, column)


def test_server_logs_are_read_in_each_of_their_shapes() -> None:
    usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}}
    shapes = [
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, **usage},
        {"timestamp": "2023-11-14T22:13:21.25Z", "response": usage},
        {
            "custom_id": "x",
            "response": {"status_code": 200, "body": {"created": 1_700_000_002, **usage}},
            "request": {"body": {"max_tokens": 77}},
        },
        {"ts": 1_700_000_003_500, "prompt_tokens": 10, "completion_tokens": 3},
        {"created_at": 1_700_000_004.5, "usage": {"input_tokens": 10, "output_tokens": 3}},
    ]
    trace = parse_trace(jsonl(*shapes))
    assert [request.arrival_ns for request in trace.requests] == [
        0,
        1_250_000_000,
        2_000_000_000,
        3_500_000_000,
        4_500_000_000,
    ]
    assert {request[2:4] for request in trace.requests} == {(10, 3)}
    assert [request.max_new for request in trace.requests] == [None, None, 77, None, None]


def test_server_logs_written_at_the_end_of_a_reply_are_sorted_by_arrival() -> None:
    lines = [
        {"created": t, "usage": {"prompt_tokens": t, "completion_tokens": 1}} for t in (30, 10, 20)
    ]
    trace = parse_trace(jsonl(*lines))
    assert [request.prompt_tokens for request in trace.requests] == [10, 20, 30]
    assert trace.notes == ("2 lines stood after a later arrival: sorted",)


def test_server_logs_count_failed_requests() -> None:
    good = {"created": 5, "usage": {"prompt_tokens": 10, "completion_tokens": 3}}
    trace = parse_trace(
        jsonl(
            good,
            {"created": 6, "error": {"message": "no"}},
            {"created": 6, "response": {"status_code": 500}},
            {"created": 7, "usage": {"prompt_tokens": 10, "completion_tokens": 0}},
        )
    )
    assert (len(trace.requests), trace.num_failed) == (1, 3)


@pytest.mark.parametrize(
    ("record", "column"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 1}}, "created"),
        ({"created": "yesterday", "usage": {}}, "created"),
        ({"created": True, "usage": {}}, "created"),
        ({"created": -1, "usage": {}}, "created"),
        ({"created": 10**21, "usage": {}}, "created"),
        ({"created": 1, "usage": None}, "usage"),
        ({"created": 1, "usage": {"prompt_tokens": 1}}, "completion_tokens"),
        ({"created": 1, "usage": {"prompt_tokens": "1", "completion_tokens": 1}}, "prompt_tokens"),
    ],
)
def test_server_logs_blame_the_key(record: dict, column: str) -> None:
    with pytest.raises(BadTrace) as caught:
        parse_trace(jsonl(record))
    assert (caught.value.line, caught.value.column) == (1, column)


HEADER = FactsHeader("4096x2", 2, 256, 1024, "fcfs", (("context", 4096),))
FACTS = (
    AskRecord(0, 0, 7, 100, None, (3,), 1, 90),
    AskRecord(0, 1, 8, 100, 50),
    CancelRecord(4, 1_500_000_000, 7),
    FailRecord(4, 1_500_000_001, 2, "out of memory"),
    ExtraRecord(6, 1_600_000_000, 8, -1),
    StopRecord(9, 2_000_000_000, 8),
    FailRecord(9, 2_000_000_000, None, "out of memory", "Move", 8),
)


def test_facts_are_read_as_they_were_written() -> None:
    text = "".join(facts_lines(HEADER, FACTS))
    assert parse_facts(text.encode()) == (HEADER, FACTS)
    assert json.loads(text.splitlines()[1])["kind"] == "ask"


@pytest.mark.parametrize(
    ("number", "changes", "column"),
    [
        (1, {"schema": "other"}, "schema"),
        (1, {"W": 0}, "W"),
        (1, {"budget": None}, "budget"),
        (1, {"layout": 5}, "layout"),
        (2, {"prompt_tokens": 0}, "prompt_tokens"),
        (2, {"round": -1}, "round"),
        (2, {"time_s": "0"}, "time_s"),
        (2, {"message_tokens": -1}, "message_tokens"),
        (3, {"id": 7}, "id"),
        (4, {"kind": "stopp"}, "kind"),
        (4, {"id": 99}, "id"),
        (5, {"position": True}, "position"),
        (5, {"reason": None}, "reason"),
        (6, {"tokens": 0.5}, "tokens"),
        (6, {"tokens": "1"}, "tokens"),
        (6, {"id": 9}, "id"),
        (7, {"round": 3}, "round"),
        (8, {"op": "Walk"}, "op"),
        (8, {"op": ["Move"]}, "op"),
        (8, {"id": 9}, "id"),
        (8, {"id": None}, "id"),
    ],
)
def test_facts_that_cannot_be_are_named(number: int, changes: dict, column: str) -> None:
    lines = [json.loads(line) for line in facts_lines(HEADER, FACTS)]
    lines[number - 1] |= changes
    with pytest.raises(BadTrace) as caught:
        parse_facts(jsonl(*lines))
    assert (caught.value.line, caught.value.column) == (number, column)


def test_facts_without_a_header_are_refused() -> None:
    with pytest.raises(BadTrace):
        parse_facts(b"")
    with pytest.raises(BadTrace):
        parse_facts("".join(list(facts_lines(HEADER, FACTS))[1:]).encode())
