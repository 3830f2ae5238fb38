"""Root-mean-square norms over the last axis: a row's result depends on that row alone."""

from __future__ import annotations

import mlx.core as mx

from qwisp.engine.model.linear import Weights
from qwisp.errors import BadInput


class Norm:
    """`x / rms(x) * (offset + weight)`."""

    __slots__ = ("eps", "weight")

    def __init__(self, weights: Weights, name: str, eps: float, offset: float = 0.0) -> None:
        weight = weights.get(f"{name}.weight")
        if weight is None:
            raise BadInput(f"weight {name}.weight is missing", "use a complete checkpoint")
        self.weight = weight + offset if offset else weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Return the same shape and type."""
        return mx.fast.rms_norm(x, self.weight, self.eps)
