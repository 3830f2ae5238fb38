"""What prefill, decode and copies cost, in whole picoseconds. Knows no files and no requests.

Every coefficient is an integer that was rounded once, so the cost of many steps at once and the
sum over single steps are the same number, on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, NamedTuple

from qwisp.errors import NotCalibrated

PS_PER_S = 10**12
ChunkRule = Literal["aligned", "ceil"]


class Residual(NamedTuple):
    """One measured time beside the fitted one; `used` tells fitted points from predicted ones."""

    label: str
    measured_s: float
    fitted_s: float
    used: bool

    @property
    def error(self) -> float:
        """Relative error of the fitted value, positive where it is too slow."""
        return self.fitted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Time of prefill rounds, decode steps and copies for one model on one machine.

    A round that prefills costs `round_ps`, and each grant in it `chunk_ps` a chunk, `token_ps` a
    token and `depth_ps` per token and row before it; layers with a window of `window_tokens` add
    `window_depth_ps` per token and row inside the window, so they saturate. A decode step costs a
    table by width plus `row_ps` per used row. A copy costs its bytes over `copy_bytes_per_s`.
    None of a group of coefficients (prefill, decode) means that nobody measured it.

    >>> toy = CostModel(
    ...     name="toy", machine="desk", model="toy", chunk_tokens=64, chunk_rule="aligned",
    ...     round_ps=5, chunk_ps=100, token_ps=10, depth_ps=1,
    ...     step_ps_by_width=((1, 1000), (4, 1600)), copy_bytes_per_s=10**9)
    >>> toy.step_ps(1), toy.step_ps(2), toy.step_ps(6), toy.is_extrapolated(6)
    (1000, 1200, 2000, True)
    >>> toy.grant_ps(0, 128, 2) == toy.grant_ps(0, 64, 1) + toy.grant_ps(64, 64, 1)
    True
    """

    name: str
    machine: str
    model: str
    chunk_tokens: int
    chunk_rule: ChunkRule
    round_ps: int | None
    chunk_ps: int | None
    token_ps: int | None
    depth_ps: int | None
    window_depth_ps: int = 0
    window_tokens: int = 0
    step_ps_by_width: tuple[tuple[int, int], ...] = ()
    row_ps: int = 0
    copy_bytes_per_s: int
    copy_measured: bool = True
    provenance: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    residuals: tuple[Residual, ...] = ()

    @property
    def has_prefill(self) -> bool:
        """True when prefill was measured."""
        return None not in (self.round_ps, self.chunk_ps, self.token_ps, self.depth_ps)

    @property
    def has_decode(self) -> bool:
        """True when decode was measured."""
        return bool(self.step_ps_by_width)

    def require(self, *, prefill: bool = True, decode: bool = True) -> CostModel:
        """Return the model itself when it can answer; raise `NotCalibrated` naming what it lacks.

        Ask before a replay: times that nobody measured are refused, never guessed.
        """
        for needed, present, what in (
            (prefill, self.has_prefill, "prefill"),
            (decode, self.has_decode, "decode"),
        ):
            if needed and not present:
                raise NotCalibrated(
                    f"the {what} of {self.model} on {self.machine} was never measured"
                    f" (calibration {self.name!r})",
                    "measure it there with `qwisp calibrate`, or ask `qwisp fit` for memory only",
                )
        return self

    def step_ps(self, width: int) -> int:
        """Return picoseconds of one decode step with `width` lanes, without the used-row term.

        Interpolated between measured widths; beyond them the nearest slope continues
        (`is_extrapolated`). Width 0 costs nothing. Raises `NotCalibrated` without a table.
        """
        self.require(prefill=False)
        if width <= 0:
            return 0
        table = self.step_ps_by_width
        if len(table) == 1:
            return table[0][1] if width <= table[0][0] else table[0][1] * width // table[0][0]
        i = min(max(bisect_left(table, (width,)), 1), len(table) - 1)
        (w0, p0), (w1, p1) = table[i - 1], table[i]
        return max(0, p0 + (p1 - p0) * (width - w0) // (w1 - w0))

    def is_extrapolated(self, width: int) -> bool:
        """Return whether `width` lies outside the measured widths."""
        table = self.step_ps_by_width
        return bool(table) and not table[0][0] <= width <= table[-1][0]

    def grant_ps(self, start: int, tokens: int, chunks: int) -> int:
        """Return picoseconds of prefilling `tokens` from position `start` in `chunks` chunks.

        The depth is summed exactly over the token positions, so a prefill costs the same tokens
        and depths however it is cut; only chunks and rounds depend on the cut. The cost of the
        round itself, `round_ps`, is not in it. Raises `NotCalibrated` if prefill is unknown.
        """
        if self.depth_ps is None:
            self.require(decode=False)
        work = chunks * self.chunk_ps + tokens * self.token_ps
        work += self.depth_ps * depth_sum(start, tokens)
        if self.window_depth_ps:
            work += self.window_depth_ps * depth_sum(start, tokens, self.window_tokens)
        return work

    def copy_ps(self, num_bytes: int) -> int:
        """Return picoseconds of copying `num_bytes` (a move, a restore or a capture)."""
        return num_bytes * PS_PER_S // self.copy_bytes_per_s


def depth_sum(start: int, tokens: int, window_tokens: int = 0) -> int:
    """Return the sum of the rows before each of `tokens` positions from `start`, exactly.

    A window caps every term at `window_tokens`.

    >>> depth_sum(10, 3), depth_sum(10, 3, 11)
    (33, 32)
    """
    if not window_tokens or start + tokens <= window_tokens:
        return tokens * start + tokens * (tokens - 1) // 2
    growing = max(0, window_tokens - start)
    return depth_sum(start, growing) + (tokens - growing) * window_tokens
