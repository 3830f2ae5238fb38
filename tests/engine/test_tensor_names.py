"""Headers that do not tell the truth about their file are refused before anything is read."""

from __future__ import annotations

import json
import struct

import pytest

from qwisp.engine.weights.checkpoint import tensor_names
from qwisp.errors import BadInput

pytestmark = pytest.mark.mlx

FOUR_BYTES = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
TWICE = json.dumps({"a": FOUR_BYTES, "b": FOUR_BYTES}).replace('"b"', '"a"').encode()


def framed(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes.*header too small"),
        (b"\1\2\3", "3 bytes.*header too small"),
        (struct.pack("<Q", 2**63) + b"{}", "header too large"),
        (struct.pack("<Q", 200_000_000) + b"{}", "header too large"),
        (framed(b"not json"), "JSON"),
        (framed(b"\xff\xfe"), "UTF-8"),
        (framed(b"[" * 50_000), "JSON"),
        (framed([]), "JSON"),
        (framed({"a": 3}), "JSON"),
        (framed({"a": FOUR_BYTES | {"dtype": "F31"}}) + bytes(4), "F31"),
        (framed({"a": FOUR_BYTES | {"shape": [-1]}}) + bytes(4), "-1"),
        (framed({"a": FOUR_BYTES | {"shape": True}}) + bytes(4), "sequence"),
        (framed({"a": FOUR_BYTES | {"data_offsets": [0, 8]}}) + bytes(8), "offset"),
        (framed({"a": FOUR_BYTES | {"data_offsets": [4, 8]}}) + bytes(8), "offset"),
        (framed({"a": FOUR_BYTES | {"shape": [2**40, 2**40]}}) + bytes(4), "overflow"),
        (framed({"a": FOUR_BYTES}), "not fully covered"),
        (framed({"a": FOUR_BYTES}) + bytes(3), "not fully covered"),
        (framed({}) + b"rest", "not fully covered"),
        # Two entries over the same bytes: every other check passes, and the last one would win.
        (
            framed(b'{"a": %b, "a": %b}' % ((json.dumps(FOUR_BYTES).encode(),) * 2)) + bytes(4),
            "two",
        ),
    ],
)
def test_a_forged_header_is_an_error(data, said, path):
    path.write_bytes(data)
    with pytest.raises(BadInput, match=said):
        tensor_names(path)


def test_a_huge_header_is_refused_before_it_is_read(path):
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 150_000_000))
        file.truncate(8 + 150_000_000)  # sparse: takes no space
    with pytest.raises(BadInput, match=r"150,000,008 bytes.*too large"):
        tensor_names(path)


def test_a_true_header_gives_its_names(path):
    path.write_bytes(framed({"__metadata__": {"format": "mlx"}, "a": FOUR_BYTES}) + bytes(4))
    assert tensor_names(path) == {"a"}
    with pytest.raises(BadInput, match="cannot be read"):
        tensor_names(path.with_name("absent"))
