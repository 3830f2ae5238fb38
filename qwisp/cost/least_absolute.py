"""Least absolute error under coefficients that cannot be negative, solved exactly."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from qwisp.errors import BadInput

MAX_POINTS = 48
"""Points a fit takes: every choice of as many points as unknowns is tried (at most 270,725)."""


def least_absolute(design: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the `(n,)` coefficients >= 0 that minimise `sum(weights * |design @ x - seconds|)`.

    `design` is `(points, n)`, `seconds` and `weights` `(points,)`. The optimum of this problem lies
    where n of the residuals or coefficients are zero, so all such corners are tried: deterministic,
    without an iteration to stop. One wild point cannot pull the fit, so none has to be dropped.
    Raises `BadInput` when the points cannot tell the coefficients apart or are too many.

    >>> line = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    >>> least_absolute(line, np.array([3.0, 5.0, 90.0, 9.0]), np.ones(4)).round(9).tolist()
    [1.0, 2.0]
    """
    points, num = design.shape
    if not num <= points <= MAX_POINTS:
        raise BadInput(
            f"{points} measured times for {num} coefficients",
            f"measure between {num} and {MAX_POINTS} different prefills",
        )
    scale = np.abs(design).max(axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(design / scale) < num:
        raise BadInput(
            f"the {points} measured prefills cannot tell {num} coefficients apart",
            "vary prompt length, depth and chunks per round, or name fewer terms",
        )
    rows = np.vstack([design / scale, np.eye(num)])
    right = np.concatenate([seconds, np.zeros(num)])
    corners = np.array(list(combinations(range(points + num), num)))
    solvable = np.abs(np.linalg.det(rows[corners])) > 1e-12
    tried = np.linalg.solve(rows[corners[solvable]], right[corners[solvable]][..., None])[..., 0]
    tried = tried[(tried >= -1e-12).all(axis=1)].clip(min=0.0)
    errors = np.abs(tried @ (design / scale).T - seconds) @ weights
    return tried[int(errors.argmin())] / scale
