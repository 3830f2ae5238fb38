"""Our own format: decimal seconds are exact nanoseconds, and what is written reads back equal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.errors import BadTrace
from qwisp.trace.jsonl import write
from qwisp.trace.read import parse_trace, read_trace
from qwisp.trace.records import objects
from qwisp.trace.request import Request


def line(**changes: str) -> bytes:
    fields = {"id": "0", "arrival_s": "0", "prompt_tokens": "600", "output_tokens": "6"} | changes
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}\n").encode()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**18),
            st.integers(1, 5000),
            st.integers(1, 10**8),
            st.none() | st.integers(1, 10**8),
            st.lists(st.integers(0, 2**63 - 1), max_size=1),
        ),
        min_size=1,
    )
)
def test_what_is_written_reads_back_equal(tmp_path_factory, rows) -> None:
    rows.sort(key=lambda row: row[0])
    requests = tuple(
        Request(i, a - rows[0][0], p, o, m, tuple(k)) for i, (a, p, o, m, k) in enumerate(rows)
    )
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    write(requests, path)
    assert read_trace(path).requests == requests


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0.1", 100_000_000),
        ("0.000000001", 1),
        ("1e-9", 1),
        ("12.5E1", 125 * 10**9),
        ("0.30000000000000004", 300_000_000),
        ("0.0000000015", 2),
        ("0.0000000025", 2),
        ("3999999999.999999999", 3_999_999_999_999_999_999),
    ],
)
def test_arrivals_are_decimal_not_binary(text: str, expected_ns: int) -> None:
    trace = parse_trace(line() + line(id="1", arrival_s=text))
    assert trace.requests[1].arrival_ns == expected_ns


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("arrival_s", "-1", "is not a time"),
        ("arrival_s", "true", "'True' is not a number"),
        ("arrival_s", '"5"', "'5' is not a number"),
        ("arrival_s", "null", "is missing"),
        ("arrival_s", "1e400", "is not a time"),
        ("arrival_s", "1e99999999999999999999", "not JSON that can be used"),
        ("arrival_s", "NaN", "NaN is not a number"),
        ("arrival_s", "9" * 4000, "more than 20 digits"),
        ("arrival_s", "9" * 5000, "not JSON that can be used"),
        ("prompt_tokens", "0", "0 tokens is below 1"),
        ("prompt_tokens", "-3", "-3 tokens is below 1"),
        ("prompt_tokens", "3.0", "'3.0' is not a whole number"),
        ("prompt_tokens", "true", "'True' is not a whole number"),
        ("prompt_tokens", "100000001", "above 100000000"),
        ("output_tokens", "null", "is missing"),
        ("output_tokens", "[]", "is not a whole number"),
        ("max_new", "0", "max_new 0 is not between 1 and 100000000"),
        ("max_new", '"x"', "is not a whole number"),
        ("prefix", "5", "must be a list"),
        ("prefix", "[true]", "must be a list of whole numbers"),
        ("prefix", "[-1]", "outside 0 to 2"),
        ("prefix", "[9223372036854775808]", "outside 0 to 2"),
        ("prefix", "[1, 2, 3]", "3 block hashes where 600 tokens start 2"),
        ("id", "0", "id 0 is on an earlier line"),
        ("id", "null", "some lines have an id and some have none"),
        ("id", "1.5", "is neither text nor a number"),
        ("id", "true", "is neither text nor a number"),
        ("id", "-1", "is neither text nor a number"),
    ],
)
def test_a_bad_value_is_named_with_line_and_key(key: str, value: str, complaint: str) -> None:
    data = line() + line(**({"id": "1"} | {key: value})) + line(id="2")
    with pytest.raises(BadTrace) as caught:
        parse_trace(data)
    assert caught.value.line == 2
    assert complaint in caught.value.what
    if "JSON" not in complaint and "NaN" not in complaint:
        assert caught.value.column == key
    trace = parse_trace(data, lenient=True)
    assert (len(trace.requests), trace.num_skipped) == (2, 1)


def test_a_truncated_last_line_is_refused_with_its_column() -> None:
    with pytest.raises(BadTrace, match="line 2, column 11: not JSON: Unterminated string"):
        parse_trace(line() + line(id="1")[:18])


def test_out_of_order_is_refused() -> None:
    with pytest.raises(BadTrace, match="column arrival_s: arrives 1000000000 ns before"):
        parse_trace(line(arrival_s="2") + line(id="1", arrival_s="1"))


def test_ties_keep_the_order_of_the_file() -> None:
    data = b"".join(line(id=str(i), arrival_s="1.5") for i in (5, 3, 9))
    assert [request.id for request in parse_trace(data).requests] == [5, 3, 9]


def test_ids_of_text_become_labels_and_no_ids_become_numbers() -> None:
    trace = parse_trace(line(id='"b"') + line(id='"a"'))
    assert [request.id for request in trace.requests] == [0, 1]
    assert trace.labels == ("b", "a")
    bare = b'{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 6}\n'
    trace = parse_trace(bare * 2)
    assert [request.id for request in trace.requests] == [0, 1]
    assert trace.labels == ()


@pytest.mark.parametrize(
    "batch",
    [
        b'{"a": 1}, {"b": 2}\n{"c": 3}',  # two on one line
        b'{"a": {}\n, "b": 1}',  # one over two lines
        b'{"a": "}\n{"}',  # a string over two lines
        b'{"a": 1\n{"b": 2}}',
        b'{"a": "{}"}\n{"b": 2}',
    ],
)
def test_objects_parsed_together_are_those_parsed_one_by_one(batch: bytes) -> None:
    together = [value if isinstance(value, dict) else "bad" for _, value in objects(batch)]
    singly = []
    for one in batch.split(b"\n"):
        singly += [value if isinstance(value, dict) else "bad" for _, value in objects(one)]
    assert together == singly
