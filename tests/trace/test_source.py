"""What kind of file it is does not matter, except where it cannot be read at all."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from qwisp.errors import BadInput, BadTrace, QwispError
from qwisp.trace.read import parse_trace, read_trace

LINE = b'{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6}\n'


def test_gzip_and_byte_order_mark_make_no_difference(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "t", tmp_path / "t.gz"
    plain.write_bytes(LINE * 3)
    zipped.write_bytes(gzip.compress(b"\xef\xbb\xbf" + LINE * 3))
    assert read_trace(zipped).requests == read_trace(plain).requests
    assert read_trace(zipped).name == "t.gz"


@pytest.mark.parametrize("keep", [3, 20, -1, -9])
def test_a_truncated_gzip_is_refused(keep: int) -> None:
    with pytest.raises(BadTrace, match="gzip data is damaged"):
        parse_trace(gzip.compress(LINE * 100)[:keep])


def test_missing_empty_directory_and_unreadable_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(BadInput, match="is a directory"):
        read_trace(tmp_path)
    with pytest.raises(BadInput, match="is a device"):
        read_trace("/dev/zero")
    with pytest.raises(BadTrace, match="empty"):
        read_trace("/dev/null")
    with pytest.raises(BadInput, match="cannot be read"):
        read_trace("a\0b")
    for content in (b"", b"\n \r\n", b"\xef\xbb\xbf"):
        (tmp_path / "empty").write_bytes(content)
        with pytest.raises(BadTrace, match="empty"):
            read_trace(tmp_path / "empty")


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b"a,b,c\n1,2,3",
        b"[1, 2]",
        b'{"a": 1}',
        b'{"arrival_s": 0, ',
        b"\x00\x01\x02",
        "{}".encode("utf-16"),
        b"\x1f\x8b",
        b"\xff\xfe\x00",
        b'"TIMESTAMP","ContextTokens","GeneratedTokens"\n"2023-11-16 18:15:46",1,1',
        b"5",
        b"null",
        b"{" * 5000,
    ],
)
def test_what_is_no_trace_is_refused_with_line_and_advice(data: bytes) -> None:
    for lenient in (False, True):
        with pytest.raises(BadTrace) as caught:
            parse_trace(data, lenient=lenient)
        assert len(str(caught.value).splitlines()) == 2


def test_facts_are_told_apart_from_a_trace() -> None:
    header = b'{"schema": "qwisp-facts-1", "layout": "4096", "W": 1, "C": 256, "budget": 0}'
    with pytest.raises(QwispError, match="replay --facts"):
        parse_trace(header)


def test_lenient_finds_the_format_behind_a_damaged_first_line() -> None:
    trace = parse_trace(b'{"arrival_s": 0, "pro\n' + LINE, lenient=True)
    assert (len(trace.requests), trace.num_skipped) == (1, 1)


def test_blank_lines_carry_nothing_but_keep_the_numbering() -> None:
    with pytest.raises(BadTrace) as caught:
        parse_trace(LINE + b"\n\r\n" + LINE + b"{}\n")
    assert caught.value.line == 5
