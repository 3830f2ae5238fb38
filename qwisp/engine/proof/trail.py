"""A trail of every operation's bits by request and position, and where two trails part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from qwisp.engine.model.step import Context
from qwisp.engine.spec.dtypes import raw_words


@dataclass(slots=True)
class Trail:
    """A tap that keeps a hash per (request, position, operation), in the order they ran."""

    context: Context | None = None
    marks: dict[int, dict[int, dict[str, int]]] = field(default_factory=dict)

    def __call__(self, name: str, value: mx.array) -> None:
        """Note an operation's rows for their owners."""
        assert self.context is not None
        words = raw_words(value)
        for row, request_id, position in self.context.owners:
            by_name = self.marks.setdefault(request_id, {}).setdefault(position, {})
            by_name[name] = hash(words[row].tobytes())


class Parting(NamedTuple):
    """The first operation whose bits differ, and the position of the token it worked on."""

    position: int
    operation: str


def first_parting(one: Trail, other: Trail, request_id: int) -> Parting | None:
    """Return where the trails of a request part, in order of position, then of execution.

    Earlier positions come first because later ones read what they wrote.
    """
    ours, theirs = one.marks.get(request_id, {}), other.marks.get(request_id, {})
    for position in sorted(ours.keys() & theirs.keys()):
        for name, mark in ours[position].items():
            if theirs[position].get(name, mark) != mark:
                return Parting(position, name)
    return None


def ulps(a: np.ndarray, b: np.ndarray) -> int:
    """Return the largest distance of two arrays of raw float words, in units of the last place.

    >>> ulps(np.array([1, 2**31], np.uint32), np.array([3, 2**31 + 1], np.uint32))
    2
    """
    half = 1 << (8 * a.dtype.itemsize - 1)

    def ordered(words: np.ndarray) -> np.ndarray:
        signed = words.astype(np.int64)
        return np.where(signed >= half, half - signed, signed)

    return int(np.abs(ordered(a) - ordered(b)).max())
