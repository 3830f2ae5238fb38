"""The last value that each rule lets pass, and the first that it refuses, in every format."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from qwisp.errors import BadTrace
from qwisp.facts.file import parse_facts
from qwisp.trace import table
from qwisp.trace.clock_text import iso_ns, scaled_ns
from qwisp.trace.collect import MAX_TOKENS
from qwisp.trace.read import parse_trace
from qwisp.trace.request import Trace
from qwisp.trace.table import TableFormat


def azure_rows(*rows: str) -> bytes:
    return ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows)).encode()


def burst_rows(*rows: str) -> bytes:
    return ("Timestamp,Request tokens,Response tokens\n" + "\n".join(rows)).encode()


def own(*records: dict) -> bytes:
    good = {"arrival_s": 0, "prompt_tokens": 600, "output_tokens": 6}
    return "\n".join(json.dumps(good | record) for record in records).encode()


def log(*records: dict) -> bytes:
    usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 3}}
    return "\n".join(json.dumps(usage | record) for record in records).encode()


def blamed(data: bytes, parse: Callable = parse_trace) -> tuple[int, int | str]:
    with pytest.raises(BadTrace) as caught:
        parse(data)
    return caught.value.line, caught.value.column


@pytest.fixture(params=["at once", "line by line"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read tables all at once, where that is possible, or line by line."""
    if request.param == "line by line":
        monkeypatch.setattr(TableFormat, "columns_at_once", lambda self, data: None)
    return request.param


def arrivals(trace: Trace) -> list[int]:
    return [request.arrival_ns for request in trace.requests]


# ---- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5", 5 * 10**9),
        ("5.", 5 * 10**9),
        (".5", 500_000_000),
        ("5.5", 5_500_000_000),
        ("5.05", 5_050_000_000),
        ("5.000000001", 5_000_000_001),
        ("5.123456789", 5_123_456_789),
        ("5.0000000005", 5 * 10**9),
        ("5.0000000015", 5_000_000_002),
        ("999999999.9", 999_999_999_900_000_000),
        ("1000000000.5", 1_000_000_000_500_000_000),
        ("1e2", 100 * 10**9),
        ("4000000000", 4 * 10**18),
    ],
)
def test_burstgpt_seconds_are_decimal_whatever_the_digits(way: str, text: str, ns: int) -> None:
    trace = parse_trace(burst_rows("0,1,1", f"{text},1,1"))
    assert arrivals(trace) == [0, ns]


def test_burstgpt_times_end_where_no_trace_lies(way: str) -> None:
    assert blamed(burst_rows("0,1,1", "4000000000.000000001,1,1")) == (3, 1)
    assert blamed(burst_rows("0,1,1", "-1,1,1")) == (3, 1)


@pytest.mark.parametrize("text", ["1_0", "٣", "0x1", "", "NaN", "1,5"])
def test_burstgpt_times_are_plain_decimals(way: str, text: str) -> None:
    assert blamed(burst_rows(f"{text},1,1"))[0] == 2
    assert blamed(burst_rows("1,x,1")) == (2, 2)
    assert blamed(burst_rows("1,1,x")) == (2, 3)


def test_azure_times_lie_between_1970_and_2096(way: str) -> None:
    first, last = "1970-01-01 00:00:00", "2096-10-02 07:06:40"  # 4 x 10^9 s after 1970
    assert arrivals(parse_trace(azure_rows(f"{first},1,1", f"{last},1,1"))) == [0, 4 * 10**18]
    assert blamed(azure_rows(f"{first},1,1", f"{last}.000000001,1,1")) == (3, 1)
    assert blamed(azure_rows("1969-12-31 23:59:59.999999999,1,1", f"{first},1,1")) == (2, 1)


def test_equal_times_keep_the_order_of_the_file_and_earlier_ones_are_refused(way: str) -> None:
    time = "2023-11-16 18:15:46"
    trace = parse_trace(azure_rows(f"{time}.5,3,1", f"{time}.5,1,1", f"{time}.5,2,1"))
    assert [request.prompt_tokens for request in trace.requests] == [3, 1, 2]
    assert trace.notes == ()
    assert blamed(azure_rows(f"{time}.000000001,1,1", f"{time},1,1")) == (3, 1)
    assert blamed(burst_rows("1,1,1", "2,1,0", "1.5,1,1")) == (4, 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02T00:00:00Z", 86_400),
        ("1970-01-01 23:59:59", 86_399),
        ("1970-01-01 01:30:00+01:30", 0),
        ("1970-01-01 00:00:00-05:30", 19_800),
        ("1970-01-01 23:59:00+23:59", 0),
        ("1970-01-01 00:00:00-00:30", 1800),
        ("1972-03-01 00:00:00", (365 + 365 + 31 + 29) * 86_400),
        ("1969-12-31 23:59:59", -1),
    ],
)
def test_iso_times_are_seconds_since_1970(text: str, seconds: int) -> None:
    assert iso_ns(text)[0] == seconds * 10**9


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01 24:00:00",
        "1970-01-01 00:60:00",
        "1970-01-01 00:00:60",
        "1970-01-01 00:00:00+24:00",
        "1970-01-01 00:00:00+00:60",
        "1970-00-01 00:00:00",
        "1971-02-29 00:00:00",
        "1899-12-31 23:59:59",
        "2100-01-01 00:00:00",
        "1970-01-01 00:00:00.",
        "1970-01-01  00:00:00",
    ],
)
def test_no_such_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        iso_ns(text)


def test_whole_units_are_bounded_at_20_digits() -> None:
    assert scaled_ns(10**20, 3) == 3 * 10**20
    assert scaled_ns(-(10**20), 1) == -(10**20)
    for value in (10**20 + 1, -(10**20) - 1):
        with pytest.raises(ValueError, match="more than 20 digits"):
            scaled_ns(value)


# ---- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [2, 3])
def test_token_counts_go_from_1_to_10_8(way: str, column: int) -> None:
    def rows(tokens: str) -> bytes:
        cells = ["2023-11-16 18:15:46", "7", "7"]
        cells[column - 1] = tokens
        return azure_rows(",".join(cells))

    for tokens in (1, MAX_TOKENS):
        assert parse_trace(rows(str(tokens))).requests[0][column] == tokens
    for text in ("0", str(MAX_TOKENS + 1), "9" * 18, "9" * 19, "-1", "1.0", "x"):
        assert blamed(rows(text)) == (2, column)
    with pytest.raises(BadTrace, match="19 digits are too many"):
        parse_trace(rows("9" * 19))
    with pytest.raises(BadTrace, match="9 tokens is above 100000000"):
        parse_trace(rows("9" * 18))


def test_a_failed_row_counts_wherever_it_stands_and_time_starts_with_the_first_reply(
    way: str,
) -> None:
    trace = parse_trace(burst_rows("1,0,0", "5,7,0", "6.5,3,4", "8,1,0", "9,2,2", "9.5,0,0"))
    assert [request[:4] for request in trace.requests] == [(0, 0, 3, 4), (1, 2_500_000_000, 2, 2)]
    assert (trace.num_failed, trace.num_skipped) == (4, 0)
    with pytest.raises(BadTrace, match=r"no request in it \(0 lines skipped, 2 failed requests\)"):
        parse_trace(burst_rows("1,0,0", "5,7,0"))


def test_a_table_with_failures_is_still_read_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_read_cells", pytest.fail)
    assert parse_trace(burst_rows("1,5,0", "2,5,5")).num_failed == 1


def test_columns_stand_in_any_order_and_others_between_them(way: str) -> None:
    data = b"Response tokens,x,Timestamp,Request tokens\n5,a,1.5,7\n6,,2,8\n"
    trace = parse_trace(data)
    assert [request[:4] for request in trace.requests] == [(0, 0, 7, 5), (1, 500_000_000, 8, 6)]
    assert blamed(data + b"6,,2,-8\n") == (4, 4)
    assert blamed(data + b"6,,x,8\n") == (4, 3)
    assert blamed(data + b"x,,3,8\n") == (4, 1)
    assert blamed(data + b"6,\xff,2,8\n") == (4, 3)
    assert blamed(data + b"6,2,8\n") == (4, 3)


def test_lenient_counts_every_bad_line_and_notes_five() -> None:
    bad = [f"2023-11-16 18:15:4{n},x,1" for n in range(7)]
    trace = parse_trace(azure_rows("2023-11-16 18:15:40,1,1", *bad), lenient=True)
    assert (len(trace.requests), trace.num_skipped, len(trace.notes)) == (1, 7, 5)
    assert trace.notes[0] == "skipped line 3, column 2: 'x' is not a number of tokens"


# ---- JSON lines -------------------------------------------------------------------------------


def test_ids_are_text_or_0_to_2_63_less_1() -> None:
    largest = 2**63 - 1
    trace = parse_trace(own({"id": 0}, {"id": largest}))
    assert [request.id for request in trace.requests] == [0, largest]
    assert blamed(own({"id": 0}, {"id": 2**63})) == (2, "id")
    assert blamed(own({}, {"id": 1})) == (2, "id")
    trace = parse_trace(own({"id": 5}, {"id": "a"}))
    assert (trace.labels, [request.id for request in trace.requests]) == (("5", "a"), [0, 1])


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"max_new": 1}, {"max_new": 0}),
        ({"max_new": MAX_TOKENS}, {"max_new": MAX_TOKENS + 1}),
        ({"prefix": [2**63 - 1, 0]}, {"prefix": [2**63]}),
        ({"prefix": [1], "prompt_tokens": 512}, {"prefix": [1, 2], "prompt_tokens": 512}),
        ({"prefix": [1, 2], "prompt_tokens": 513}, {"prefix": [1, 2, 3], "prompt_tokens": 1024}),
        ({"arrival_s": 4 * 10**9}, {"arrival_s": 4 * 10**9 + 1}),
        ({"output_tokens": 1}, {"output_tokens": 10**18}),
        ({"prompt_tokens": 1}, {"prompt_tokens": 10**18 + 1}),
    ],
)
def test_own_records_at_their_limits(good: dict, bad: dict) -> None:
    assert len(parse_trace(own({}, good)).requests) == 2
    assert blamed(own({}, bad)) == (2, next(iter(bad)))


def test_18_digits_are_a_number_and_more_are_none() -> None:
    with pytest.raises(BadTrace, match="above 100000000"):
        parse_trace(own({"output_tokens": 10**18}))
    with pytest.raises(BadTrace, match="more than 18 digits"):
        parse_trace(own({"output_tokens": 10**18 + 1}))


def test_a_bad_line_behind_a_thousand_keeps_its_number_and_column() -> None:
    data = own(*[{}] * 1000) + b"\n\n" + own({}) + b'\n{"arrival_s": 0,, }'
    assert blamed(data) == (1003, 17)
    assert blamed(own({}) + b'\n{"a": "\xff"}') == (2, 8)
    assert blamed(own({}) + b"\n[]") == (2, 1)
    assert parse_trace(data, lenient=True).num_skipped == 1


def test_mooncake_counts_milliseconds_and_blocks_of_512() -> None:
    good = {"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, 2]}
    rows = [good, good | {"timestamp": 3, "input_length": 512, "hash_ids": [1]}]
    trace = parse_trace("\n".join(map(json.dumps, rows)).encode())
    assert arrivals(trace) == [0, 3_000_000]
    rows[1]["hash_ids"] = [1, 2]
    assert blamed("\n".join(map(json.dumps, rows)).encode()) == (2, "hash_ids")


# ---- server logs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "has_failed"),
    [
        ({"status": 200}, False),
        ({"status": 399}, False),
        ({"status": 400}, True),
        ({"status": 401}, True),
        ({"status_code": 399}, False),
        ({"status_code": 400}, True),
        ({"response": {"status_code": 500}}, True),
        ({"response": {"body": {"error": {"message": "no"}}}}, True),
        ({"status": "completed"}, False),
        ({"status": True}, False),
        ({"status": None, "error": None}, False),
        ({"error": ""}, False),
        ({"error": "no"}, True),
    ],
)
def test_a_line_has_failed_from_status_400_on(record: dict, has_failed: bool) -> None:
    trace = parse_trace(log({"created": 1}, {"created": 1} | record))
    assert (trace.num_failed, len(trace.requests)) == (has_failed, 2 - has_failed)


def test_the_unit_of_a_time_is_told_by_its_size() -> None:
    same = [10**11, 10**14, 10**17]  # ms, us and ns: 10^8 s after 1970
    trace = parse_trace(log(*[{"created": value} for value in same], {"created": 10**8 + 1}))
    assert arrivals(trace) == [0, 0, 0, 10**9]
    for value in (10**11 - 1, 10**14 - 1, 10**17 - 1, 10**20 - 1, 10**20, -1):
        assert blamed(log({"created": 0}, {"created": value})) == (2, "created")
    assert arrivals(parse_trace(log({"ts": 0}, {"ts": 4 * 10**18}))) == [0, 4 * 10**18]


def test_the_outer_time_and_the_first_key_count() -> None:
    inner = {"response": {"created": 50}}
    trace = parse_trace(
        log({"created": 1}, {"created_at": 9, "created": 2}, {"time": 3} | inner, inner)
    )
    assert arrivals(trace) == [0, 10**9, 2 * 10**9, 49 * 10**9]
    trace = parse_trace(log({"created": 1, "max_tokens": 5, "max_completion_tokens": 4}))
    assert trace.requests[0].max_new == 4


def test_only_lines_behind_a_later_one_are_sorted_and_counted() -> None:
    times = [{"created": t} for t in (5, 5, 9, 5, 8, 9)]
    trace = parse_trace(log(*times))
    assert arrivals(trace) == [0, 0, 0, 3 * 10**9, 4 * 10**9, 4 * 10**9]
    assert trace.notes == ("2 lines stood after a later arrival: sorted",)
    assert parse_trace(log(*times[:3])).notes == ()


def test_counts_may_stand_on_the_line_itself_and_one_missing_is_blamed() -> None:
    flat = {"created": 1, "input_tokens": 4, "output_tokens": 2}
    assert parse_trace(json.dumps(flat).encode()).requests[0][2:4] == (4, 2)
    del flat["input_tokens"]
    assert blamed(json.dumps(flat).encode()) == (1, "input_tokens")


# ---- which format, and facts ------------------------------------------------------------------


def test_lenient_looks_at_21_lines_for_the_format() -> None:
    damaged = b'{"arrival_s": 0, "pro\n'
    assert parse_trace(damaged * 20 + own({}), lenient=True).num_skipped == 20
    with pytest.raises(BadTrace, match="belongs to no known format"):
        parse_trace(damaged * 21 + own({}), lenient=True)
    assert blamed(b'\n{"a" 1}') == (2, 6)
    assert blamed(b'\n{"a": 1}') == (2, 1)


FACTS = {"schema": "qwisp-facts-1", "layout": "4096", "W": 1, "C": 1, "budget": 0, "order": "fcfs"}
ASK = {"round": 0, "time_s": 0, "kind": "ask", "id": 0, "prompt_tokens": 1}


def facts(*records: dict) -> bytes:
    return "\n".join(json.dumps(record) for record in (FACTS, *records)).encode()


@pytest.mark.parametrize(
    "record",
    [
        {"max_new": 1, "priority": -1, "message_tokens": 0},
        {"id": 10**18, "round": 10**18, "prompt_tokens": 10**18},
        {"max_new": None, "time_s": 4_000_000_000},
    ],
)
def test_facts_at_their_limits_are_read(record: dict) -> None:
    _, (ask,) = parse_facts(facts(ASK | record))
    assert {key: getattr(ask, key) for key in record if key != "time_s"} == {
        key: value for key, value in record.items() if key != "time_s"
    }


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"max_new": 0}, "max_new"),
        ({"id": 10**18 + 1}, "id"),
        ({"id": -1}, "id"),
        ({"round": 10**18 + 1}, "round"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"time_s": -1}, "time_s"),
        ({"time_s": True}, "time_s"),
        ({"time_s": None}, "time_s"),
        ({"prefix": [-1]}, "prefix"),
    ],
)
def test_facts_beyond_their_limits_are_refused(change: dict, column: str) -> None:
    assert blamed(facts(ASK | change), parse_facts) == (2, column)


def test_facts_of_one_round_may_follow_each_other_and_a_failure_may_be_at_position_0() -> None:
    fail = {"round": 0, "time_s": 0.5, "kind": "fail", "position": 0, "reason": "x"}
    _, records = parse_facts(facts(ASK, fail, {"round": 0, "time_s": 1, "kind": "stop", "id": 0}))
    assert [record.time_ns for record in records] == [0, 500_000_000, 10**9]
    assert blamed(facts({"round": 0, "time_s": 0, "kind": "cancel", "id": 0}), parse_facts) == (
        2,
        "id",
    )
