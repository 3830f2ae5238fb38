"""The certificates shipped with the project say what the documents quote of them."""

from __future__ import annotations

import json

import pytest

from qwisp.receipts.record import Receipt, parse_receipts
from qwisp.spec.data_files import data_root

NAME = "receipts/certify-h200.jsonl"
RECEIPTS = parse_receipts((data_root() / NAME).read_bytes(), NAME).all
# Tokens, worked out by hand: blocks of 256 keys that a stream of so many positions begins.
BLOCKS = {1300: 6, 3000: 12, 4000: 16, 5000: 20, 9000: 36}


def windows() -> dict[str, int]:
    shapes = {
        path.stem: json.loads(path.read_text()) for path in (data_root() / "shapes").iterdir()
    }
    return {f"random:{name}": shape.get("sliding_window") or 0 for name, shape in shapes.items()}


def test_four_shapes_and_contexts_from_1_300_to_9_000_tokens_are_on_record() -> None:
    asked = {(receipt.model, receipt.inputs["tokens"]) for receipt in RECEIPTS}
    assert len(asked) == len(RECEIPTS) == 12
    assert len({model for model, _ in asked}) >= 4
    assert {tokens for _, tokens in asked} == set(BLOCKS)


@pytest.mark.parametrize("receipt", RECEIPTS, ids=lambda r: f"{r.model}-{r.inputs['tokens']}")
def test_each_is_identical_and_reached_what_it_says(receipt: Receipt) -> None:
    value, reached = receipt.value, receipt.value["exercised"]
    assert (value["verdict"], value["altered"], value["not_exercised"]) == ("identical", {}, [])
    assert receipt.inputs["identity"] == "cuda bfloat16 W=8 C=64 strict compiled own kernels"
    assert not receipt.inputs["hostile"]  # the kernels that decode there, not replaced ones
    assert reached["blocks"] == BLOCKS[receipt.inputs["tokens"]]
    assert reached["live"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert reached["widths"] == [8]
    assert reached["defined_rows"] > receipt.inputs["tokens"]
    if window := windows()[receipt.model]:
        ring = reached["rings"][str(window)]
        assert min(ring["wrapped"], ring["moved"], ring["restored"]) >= 1
