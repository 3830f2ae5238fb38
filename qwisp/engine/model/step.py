"""What one pass of the decoder works on: a row per lane, or the rows of one prefill window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from qwisp.engine.model.ops import Ops
from qwisp.engine.spec.identity import Safeguards
from qwisp.scheduling.contract import Place

Tap = Callable[[str, mx.array], None]
Pure = Callable[..., Any]


def no_tap(name: str, value: mx.array) -> None:
    """Look at nothing."""
    del name, value


class LaneKernels(Protocol):
    """Own kernels for a decode step; see `own_kernels`."""

    def sdpa_rows(self, q: mx.array, cache: Any, step: Step, window: int | None) -> mx.array:
        """Return `[W, H, D]` in fp32 for scaled queries of all rows."""

    def gated_delta_step(
        self, inputs: Sequence[mx.array], num_live: int
    ) -> tuple[mx.array, mx.array]:
        """Return outputs `[W, T, ...]` and new states of all rows after T tokens in time."""


@dataclass(slots=True)
class Context:
    """What every part of the decoder is given: kernels, rules, and who looks on.

    `poisons` fills idle and absent rows with NaN, which must change nothing. `owners` says whose
    the rows of the pass are, for those who look on: (row, request id, position). `compiled` holds
    traced parts of a decode step; None runs them as they are. `kernels` are own ones, on a GPU.
    """

    ops: Ops
    guards: Safeguards = field(default_factory=Safeguards)
    tap: Tap = no_tap
    poisons: bool = False
    owners: tuple[tuple[int, int, int], ...] = ()
    compiled: dict[tuple[str, int, int], Pure] | None = None
    kernels: LaneKernels | None = None

    def pure(self, name: str, rows: Step | Window, function: Pure, *args: mx.array):
        """Return `function(*args)`, traced once per name and number of live rows if `compiled`.

        The function may read weights, rules and how many rows are live, and nothing else that
        changes from step to step: lengths and places stay outside.
        """
        if self.compiled is None or isinstance(rows, Window) or self.tap is not no_tap:
            return function(*args)
        key = (name, rows.num_live, rows.width)
        if key not in self.compiled:
            self.compiled[key] = mx.compile(function)
        return self.compiled[key](*args)


class Lane(NamedTuple):
    """A stream that decodes: the token it feeds has this position."""

    place: Place
    position: int


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: live lanes fill the first rows of `width`, the rest is idle."""

    lanes: tuple[Lane, ...]
    width: int

    @property
    def num_live(self) -> int:
        """Rows that belong to somebody."""
        return len(self.lanes)

    @property
    def positions(self) -> mx.array:
        """`[W]`; idle rows repeat the first lane's."""
        own = [lane.position for lane in self.lanes]
        return mx.array(own + own[:1] * (self.width - len(own)), mx.int32)

    @property
    def slots(self) -> list[int]:
        """`[W]`; idle rows read, and never write, the first lane's slot."""
        own = [lane.place.slot for lane in self.lanes]
        return own + own[:1] * (self.width - len(own))

    def fill(self, rows: list[mx.array]) -> mx.array:
        """Return `[W, ...]` from a row per live lane; idle rows repeat the first."""
        return mx.stack(rows + rows[:1] * (self.width - len(rows)))

    def own_choice(self, x: mx.array) -> mx.array:
        """Return x with idle rows replaced by the first live row (an expert choice)."""
        return _where_live(x, slice(0, self.num_live), x[:1])

    def poisoned(self, x: mx.array) -> mx.array:
        """Return x with NaN in idle rows."""
        return _where_live(x, slice(0, self.num_live), mx.array(mx.nan, x.dtype))


@dataclass(frozen=True, slots=True)
class Window:
    """One prefill pass: row r stands for position `origin + r`; `[first, end)` are present."""

    place: Place
    origin: int
    num_rows: int
    first: int
    end: int

    @property
    def rows(self) -> slice:
        """The present rows."""
        return slice(self.first - self.origin, self.end - self.origin)

    @property
    def queries(self) -> np.ndarray:
        """`[C]` the position each row asks from; padding asks like the nearest present row."""
        return np.clip(
            np.arange(self.origin, self.origin + self.num_rows), self.first, self.end - 1
        )

    def fill(self, present: mx.array) -> mx.array:
        """Return `[C, ...]` with zeros in absent rows."""
        rows = self.rows
        pad = [(rows.start, self.num_rows - rows.stop)] + [(0, 0)] * (present.ndim - 1)
        return mx.pad(present, pad)

    def own_choice(self, x: mx.array) -> mx.array:
        """Return x with absent rows replaced by the first present row (an expert choice)."""
        return _where_live(x, self.rows, x[self.rows.start : self.rows.start + 1])

    def poisoned(self, x: mx.array) -> mx.array:
        """Return x with NaN in absent rows."""
        return _where_live(x, self.rows, mx.array(mx.nan, x.dtype))


def _where_live(x: mx.array, rows: slice, other: mx.array) -> mx.array:
    if (rows.start, rows.stop) == (0, x.shape[0]):
        return x
    live = np.zeros((x.shape[0],) + (1,) * (x.ndim - 1), bool)
    live[rows] = True
    return mx.where(mx.array(live), x, other)
