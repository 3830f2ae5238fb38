"""Receipts: every measurement kept with what made it, appended and on disk before the next one.

```python
with ReceiptBook(path, stamp=Stamp.here(), clock=time.time) as book:
    receipt = book.once("step_s", {"width": 8}, lambda: Measured(0.045, "s", "wall clock"))
```
A measurement whose inputs are in the file is not repeated, so an interrupted run goes on where it
stopped.
"""

from __future__ import annotations

from qwisp.receipts.book import ReceiptBook
from qwisp.receipts.pool import mean, same_kind
from qwisp.receipts.record import (
    Measured,
    Receipt,
    Receipts,
    hash_inputs,
    read_receipts,
)
from qwisp.receipts.stamp import Stamp

__all__ = [
    "Measured",
    "Receipt",
    "ReceiptBook",
    "Receipts",
    "Stamp",
    "hash_inputs",
    "mean",
    "read_receipts",
    "same_kind",
]
