"""Runs a study: the criteria are on disk before the first probe starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qwisp.receipts import Measured, ReceiptBook, Stamp
from qwisp.study.declare import Study
from qwisp.study.judge import CRITERIA_METRIC, RECEIPTS_FILE, Verdict, check_declared, verdict_on


def run_study(study: Study, folder: Path, *, stamp: Stamp, clock: Callable[[], float]) -> Verdict:
    """Measure what is not measured yet and return the verdict.

    Interrupted at any instant, the next run goes on with the first missing probe. Raises `BadInput`
    if the criteria have changed since the first receipt, or another run is writing.
    """
    path = folder / RECEIPTS_FILE
    with ReceiptBook(
        path, stamp=stamp, clock=clock, study=study.id, criteria_hash=study.criteria_hash
    ) as book:
        check_declared(study, book.receipts)
        declared = {
            "criteria": study.declaration,
            "question": study.question,
            "protocol": study.protocol,
        }
        if not book.receipts:
            inputs = {"criteria_hash": study.criteria_hash}
            book.once(CRITERIA_METRIC, inputs, lambda: Measured(declared, "", "declaration"))
        study.measure(book)
        return verdict_on(study, book.receipts, book.torn)
