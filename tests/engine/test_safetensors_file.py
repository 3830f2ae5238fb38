"""Headers that do not tell the truth about their file are refused with their numbers."""

from __future__ import annotations

import json
import struct

import pytest

from qwisp.engine.safetensors_file import read_header
from qwisp.errors import BadInput


def framed(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "header"),
        (b"\1\2\3", "header"),
        (struct.pack("<Q", 2**63) + b"{}", "header"),
        (struct.pack("<Q", 200_000_000) + b"{}", "header"),
        (framed(b"not json"), "JSON"),
        (framed(b"\xff\xfe"), "JSON"),
        (framed(b"[" * 50_000), "JSON"),
        (framed([]), "object"),
        (framed(b'{"a": {}, "a": {}}'), "twice"),
        (framed({"a": 3}), "object"),
        (framed({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}), "F31"),
        (framed({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "shape"),
        (framed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}), "needs 4"),
        (framed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "next"),
        (framed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), "describes 4"),
        (framed({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}), "needs"),
        (framed({"a": {"dtype": "F32", "shape": True, "data_offsets": [0, 4]}}), "shape"),
        (framed({}) + b"rest", "describes 0"),
    ],
)
def test_a_forged_header_is_an_error_with_its_numbers(data, said, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=said):
        read_header(path)


def test_a_huge_header_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 150_000_000))
        file.truncate(8 + 150_000_000)  # sparse: takes no space
    with pytest.raises(BadInput, match="150,000,000"):
        read_header(path)
