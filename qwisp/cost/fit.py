"""From measured times to a cost model of whole picoseconds, with every residual."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from math import inf
from statistics import median

import numpy as np

from qwisp.cost.measured import CopyPoint, DecodePoint, Measurements, PrefillPoint
from qwisp.cost.model import PS_PER_S, CostModel, Residual, depth_sum
from qwisp.errors import BadInput


def fit_cost(measured: Measurements) -> CostModel:
    """Return the cost model of `measured`; what was not measured stays unknown in it.

    Decode comes first (a table by width and a cost per used row), because a prefill round also
    decodes; then prefill by least absolute error over the terms named. Raises `BadInput`
    when the points cannot settle the terms, `NotCalibrated` when a prefill ran beside decoding
    lanes and no decode was measured.
    """
    step_ps_by_width, row_ps = fit_decode(measured.decode)
    bytes_per_s = fit_copies(measured.copies) or measured.copy_bytes_per_s
    if bytes_per_s <= 0:
        raise BadInput(
            f"calibration {measured.name!r} knows no copy speed",
            "measure one copy, or state copy_bytes_per_s",
        )
    decode_only = CostModel(
        name=measured.name,
        machine=measured.machine,
        model=measured.model,
        chunk_tokens=measured.chunk_tokens,
        chunk_rule=measured.chunk_rule,
        round_ps=None,
        chunk_ps=None,
        token_ps=None,
        depth_ps=None,
        window_tokens=measured.window_tokens,
        step_ps_by_width=step_ps_by_width,
        row_ps=row_ps,
        copy_bytes_per_s=bytes_per_s,
        copy_measured=bool(measured.copies),
        provenance=measured.sources,
        notes=measured.notes,
    )
    return replace(decode_only, **_fit_prefill(measured, decode_only))


def residuals(model: CostModel, measured: Measurements) -> tuple[Residual, ...]:
    """Return each measured time beside what `model` says, in the order of `measured`."""
    rows = [
        Residual(p.label, p.seconds, prefill_ps(model, p) / PS_PER_S, p.used)
        for p in measured.prefill
    ]
    rows += [
        Residual(
            p.label, p.seconds, (model.step_ps(p.width) + model.row_ps * p.rows) / PS_PER_S, p.used
        )
        for p in measured.decode
    ]
    return tuple(rows)


def prefill_ps(model: CostModel, point: PrefillPoint) -> int:
    """Return picoseconds that `model` gives the prefill of `point`, decode inside it included."""
    work = point.rounds * model.round_ps
    work += model.grant_ps(point.start, point.tokens, point.chunks)
    return work + decode_ps(model, point)


def decode_ps(model: CostModel, point: PrefillPoint) -> int:
    """Return picoseconds that the decode steps inside a prefill measurement took."""
    if not point.width:
        return 0
    return point.steps * (model.step_ps(point.width) + model.row_ps * point.rows)


def fit_decode(points: Sequence[DecodePoint]) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the table `((width, ps), ...)` and picoseconds per used row.

    Together they minimise the sum of relative errors, in absolute value. At the optimum the slope
    over rows runs through two points of one width, so all such slopes are tried; it is 0 where no
    width was measured at two row counts, and never negative.

    >>> fit_decode([DecodePoint("a", 0.010, 1, 0), DecodePoint("b", 0.011, 1, 1000)])
    (((1, 10000000000),), 1000000)
    """
    used = [point for point in points if point.used]
    if any(point.seconds <= 0 or point.width < 1 for point in used):
        raise BadInput("a measured decode step took no time", "measure decode again")
    slopes = {0.0} | {
        (b.seconds - a.seconds) / (b.rows - a.rows)
        for a, b in combinations(used, 2)
        if a.width == b.width and a.rows != b.rows
    }
    best = min(_decode_table(used, slope_s) for slope_s in sorted(slopes) if slope_s >= 0)
    _, slope_s, table = best
    return tuple((w, round(s * PS_PER_S)) for w, s in table), round(slope_s * PS_PER_S)


def _decode_table(
    used: Sequence[DecodePoint], slope_s: float
) -> tuple[float, float, tuple[tuple[int, float], ...]]:
    """Return (sum of relative errors, slope, best seconds by width) for a slope over rows."""
    error, table = 0.0, []
    for width in sorted({point.width for point in used}):
        mine = [p for p in used if p.width == width]
        left = sorted((p.seconds - slope_s * p.rows, p.times / p.seconds) for p in mine)
        passed = list(accumulate(weight for _, weight in left))
        base_s = left[bisect_left(passed, passed[-1] / 2)][0]  # their weighted median
        table.append((width, base_s))
        error += sum(abs(rest_s - base_s) * weight for rest_s, weight in left)
    if any(base_s <= 0 for _, base_s in table):
        error = inf  # a step without rows takes some time
    return error, slope_s, tuple(table)


def fit_copies(points: Sequence[CopyPoint]) -> int:
    """Return the median bytes per second of the copies, 0 without any."""
    return round(median(p.num_bytes / p.seconds for p in points)) if points else 0


def _fit_prefill(measured: Measurements, decode: CostModel) -> dict[str, int]:
    """Return picoseconds by coefficient, empty when no prefill was measured."""
    used = [point for point in measured.prefill if point.used]
    if not used:
        return {}
    times = np.array([p.seconds for p in used])
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise BadInput("a measured time is not above zero", "measure again, leave out failed runs")
    columns = {
        "round": [p.rounds for p in used],
        "chunk": [p.chunks for p in used],
        "token": [p.tokens for p in used],
        "depth": [
            depth_sum(p.start, p.tokens)
            + measured.window_weight * depth_sum(p.start, p.tokens, measured.window_tokens)
            for p in used
        ],
    }
    design = np.array([columns[term] for term in measured.terms], dtype=float).T
    seconds = [p.seconds - decode_ps(decode, p) / PS_PER_S for p in used]
    weights = np.array([p.times for p in used], dtype=float)
    if measured.error == "relative":
        weights /= times
    found = least_absolute(design, np.array(seconds), weights)
    ps_by_term = dict.fromkeys(columns, 0)
    for term, value in zip(measured.terms, found, strict=True):
        ps_by_term[term] = round(float(value) * PS_PER_S)
    window_ps = round(ps_by_term["depth"] * measured.window_weight)
    return {f"{term}_ps": ps for term, ps in ps_by_term.items()} | {"window_depth_ps": window_ps}


def least_absolute(design: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the `(n,)` coefficients >= 0 that minimise `sum(weights * |design @ x - seconds|)`.

    `design` is `(points, n)`, `seconds` and `weights` `(points,)`. One wild point cannot pull the
    fit, so none has to be dropped. Raises `BadInput` when the points cannot tell the coefficients
    apart.

    >>> line = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    >>> least_absolute(line, np.array([3.0, 5.0, 90.0, 9.0]), np.ones(4)).round(9).tolist()
    [1.0, 2.0]
    """
    from scipy.optimize import linprog  # only a fit needs it, and it takes half a second to import

    points, num = design.shape
    if points < num:
        raise BadInput(
            f"{points} measured times for {num} coefficients",
            f"measure {num} different prefills or more",
        )
    scale = np.abs(design).max(axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(design / scale) < num:
        raise BadInput(
            f"the {points} measured prefills cannot tell {num} coefficients apart",
            "vary prompt length, depth and chunks per round, or name fewer terms",
        )
    # Each residual is the difference of two amounts >= 0, of which the program makes one zero.
    # The dual simplex ends on a corner, so equal input gives equal coefficients.
    found = linprog(
        np.concatenate([np.zeros(num), weights, weights]),
        A_eq=np.hstack([design / scale, np.eye(points), -np.eye(points)]),
        b_eq=seconds,
        method="highs-ds",
    )
    assert found.success, found.message  # x = 0 is feasible, and the cost has a floor of 0
    return found.x[:num] / scale
