"""Least absolute error under coefficients that cannot be negative."""

from __future__ import annotations

import numpy as np

from qwisp.errors import BadInput


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
