"""Azure files: seven digits, CRLF, no final newline; all at once equals line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwisp.errors import BadTrace
from qwisp.trace import table
from qwisp.trace.read import parse_trace, read_trace
from qwisp.trace.table import TableFormat

HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def rows(*lines: str) -> bytes:
    return HEAD + "\r\n".join(lines).encode()


def test_seven_digits_crlf_and_no_final_newline_read_to_the_nanosecond() -> None:
    trace = parse_trace(
        rows("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951691,396,109")
    )
    assert [tuple(request[:4]) for request in trace.requests] == [
        (0, 0, 374, 44),
        (1, 4_314_579_100, 396, 109),
    ]
    assert trace.span_ns == 4_314_579_100
    assert (trace.prompt_tokens, trace.output_tokens) == (770, 153)


@pytest.mark.parametrize("digits", ["0123", "012300000", "1", "", "000000001"])
def test_a_short_fraction_is_a_fraction_not_a_count(digits: str) -> None:
    first, second = "2023-11-16 00:00:00", "2023-11-16 00:00:01"
    dot = "." if digits else ""
    trace = parse_trace(rows(f"{first},1,1", f"{second}{dot}{digits},1,1"))
    assert trace.requests[1].arrival_ns == 10**9 + int(digits.ljust(9, "0"))


def test_times_of_2024_with_an_offset_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows(
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:00+00:00,1,5",
        "2024-05-10 02:00:01.017335+02:00,2399,6",
    )
    with pytest.raises(BadTrace, match="line 3, column 1: arrives 9930000 ns before"):
        parse_trace(data)
    trace = parse_trace(data, lenient=True)
    assert [request.arrival_ns for request in trace.requests] == [0, 1_007_405_000]
    assert trace.num_skipped == 1
    good = rows("2024-05-10 00:00:00+00:00,1,5", "2024-05-10 02:00:01.017335+02:00,2399,6")
    fast = parse_trace(good)
    monkeypatch.setattr(TableFormat, "columns_at_once", lambda self, data: None)
    assert parse_trace(good) == fast
    assert fast.requests[1].arrival_ns == 1_017_335_000


@pytest.mark.truth
@pytest.mark.parametrize(
    ("file", "num", "output_tokens"),
    [("azure_llm_2023_code.csv", 8819, 245_896), ("azure_llm_2023_conv.csv", 19_366, 4_088_665)],
)
def test_public_files_read_the_same_at_once_and_line_by_line(
    traces_dir: Path, monkeypatch: pytest.MonkeyPatch, file: str, num: int, output_tokens: int
) -> None:
    fast = read_trace(traces_dir / file)
    monkeypatch.setattr(TableFormat, "columns_at_once", lambda self, data: None)
    assert read_trace(traces_dir / file) == fast
    assert len(fast.requests) == num
    assert fast.output_tokens == output_tokens


@pytest.mark.truth
def test_the_public_file_is_read_all_at_once(
    traces_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*words: object) -> None:
        raise AssertionError("the fast reader gave up on a plain file")

    monkeypatch.setattr(table, "_read_cells", slow)
    assert read_trace(traces_dir / "azure_llm_2023_conv.csv").num_skipped == 0


@pytest.mark.parametrize(
    ("line", "column", "complaint"),
    [
        ("2023-11-16 18:15:47,-5,44", 2, "-5 tokens is below 1"),
        ("2023-11-16 18:15:47,5,0", 3, "0 tokens is below 1"),
        ("2023-11-16 18:15:47,100000001,1", 2, "above 100000000"),
        ("2023-11-16 18:15:47," + "9" * 5000 + ",1", 2, "5000 digits"),
        ("2023-11-16 18:15:47,5.0,1", 2, "'5.0' is not a number of tokens"),
        ("2023-11-16 18:15:47,NaN,1", 2, "'NaN'"),
        ("2023-11-16 18:15:47,,1", 2, "''"),
        ("2023-11-16 18:15:47,+5,1", 2, "'+5'"),
        ("2023-11-16 18:15:47,٥,1", 2, "'٥'"),
        ("2023-11-16 18:15:47,5", 2, "2 cells where the first line has 3"),
        ("2023-11-16 18:15:47,5,6,7", 4, "4 cells"),
        ("2023-11-16 18:15:45,5,6", 1, "arrives 1000000000 ns before"),
        ("2023-11-16 18:15:4", 1, "1 cells"),
        ("2023-11-16 18:15:4,5,6", 1, "is not a time"),
        ("2023-11-16 18:15:60,5,6", 1, "is not a time"),
        ("2023-11-16 24:00:00,5,6", 1, "not a time of day"),
        ("2023-02-29 18:15:47,5,6", 1, "not a day of the calendar"),
        ("0023-11-16 18:15:47,5,6", 1, "is not a time"),
        ("2023-11-16 18:15:47.1234567890,5,6", 1, "is not a time"),
        ("2023-11-16 18:15:47+00:00,5,6", 1, "some times name their offset"),
        ("2023-11-16 18:15:47\x00,5,6", 1, "is not a time"),
    ],
)
def test_a_bad_line_is_named_with_line_and_column(line: str, column: int, complaint: str) -> None:
    data = rows("2023-11-16 18:15:46,374,44", line, "2023-11-16 18:15:48,1,1")
    with pytest.raises(BadTrace) as caught:
        parse_trace(data, "my.csv")
    error = caught.value
    assert (error.line, error.column) == (3, column)
    assert complaint in error.what
    assert error.what.startswith(f"my.csv: line 3, column {column}: ")
    trace = parse_trace(data, lenient=True)
    assert (len(trace.requests), trace.num_skipped) == (2, 1)
    assert complaint in trace.notes[0]


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("TIMESTAMP,ContextTokens", "'GeneratedTokens' is missing"),
        ("TIMESTAMP,ContextTokens,generatedtokens", "'GeneratedTokens' is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens", "'ContextTokens' appears twice"),
    ],
)
def test_wrong_columns_are_named(header: str, complaint: str) -> None:
    with pytest.raises(BadTrace, match=complaint):
        parse_trace(f"{header}\n2023-11-16 18:15:46,374,44,1".encode())


def test_columns_are_found_by_name() -> None:
    data = b"ContextTokens,x,GeneratedTokens,TIMESTAMP\n5,,6,2023-11-16 18:15:46\n"
    assert parse_trace(data).requests[0][:4] == (0, 0, 5, 6)


def test_other_columns_may_be_called_anything() -> None:
    for header in (b"x, x", b" x,x ", b"x,x", b",", b" ,"):
        data = b"TIMESTAMP," + header + b", ContextTokens ,GeneratedTokens\n"
        trace = parse_trace(data + b"2023-11-16 18:15:46,,,5,6\n")
        assert trace.requests[0][:4] == (0, 0, 5, 6)


def test_a_header_without_rows_is_no_trace() -> None:
    with pytest.raises(BadTrace, match="no request in it"):
        parse_trace(HEAD)
