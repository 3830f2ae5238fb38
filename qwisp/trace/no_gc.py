"""Build many small records without the cycle collector scanning them over and over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_gc() -> Iterator[None]:
    """Pause the cycle collector; what was built inside counts as old afterwards.

    Scanning a hundred thousand new records takes as long as making them. Reference counts still
    free what is dropped; cycles are found by the next full collection.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # all generations into the permanent one, and back into the oldest:
        gc.unfreeze()  # two list joins, nothing is scanned
        if was_on:
            gc.enable()
