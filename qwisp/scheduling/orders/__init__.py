"""Admission orders, one file each, found by name.

An order is `pick(waiting, fits, max_passed) -> index | None`. `waiting` holds streams by arrival;
each has `prompt_tokens`, `cap_tokens`, `ask` and `passed` (how often it was passed so far).
`fits(index)` asks whether that stream could start now. Look at `SCAN` candidates at most.
"""

SCAN = 64
