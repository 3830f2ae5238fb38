"""Numbers out of several receipts, only where these measured the same thing in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from qwisp.errors import BadInput
from qwisp.receipts.record import Receipt

_MUST_AGREE = (
    "study",
    "metric",
    "unit",
    "instrument",
    "model",
    "model_hash",
    "machine",
    "commit",
    "is_dirty",
)


def number(receipt: Receipt) -> float:
    """Return the receipt's value as a number; true is 1. Raises `BadInput` if it is none."""
    if not isinstance(receipt.value, bool | int | float):
        what = f"receipt {receipt.id} ({receipt.metric}) holds {str(receipt.value)[:40]!r}"
        raise BadInput(what, "only numbers can be compared or averaged")
    return float(receipt.value)


def same_kind(receipts: Sequence[Receipt]) -> None:
    """Raise `BadInput` unless all receipts agree in metric, unit, instrument, model and commit."""
    for name in _MUST_AGREE:
        values = sorted({str(getattr(receipt, name)) for receipt in receipts})
        if len(values) > 1:
            what = f"{len(receipts)} receipts differ in {name}: {', '.join(values)[:120]}"
            raise BadInput(what, "compare them side by side; they are never averaged")


def mean(receipts: Sequence[Receipt]) -> float:
    """Return the mean value of repetitions. Raises `BadInput` if they are not of the same kind."""
    if not receipts:
        raise BadInput("the mean of 0 receipts", "measure first")
    same_kind(receipts)
    return sum(map(number, receipts)) / len(receipts)
