"""Rotary embeddings as a config names them: which elements turn, how fast, per kind of scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """A ramp over dimensions from kept to stretched; queries and keys grow by a factor of their
    own."""

    factor: float
    original_tokens: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    @property
    def growth(self) -> float:
        """What rotated elements are multiplied by.

        >>> YarnScaling(factor=1.0).growth
        1.0
        """
        return _grown(self.factor, self.mscale) / _grown(self.factor, self.mscale_all_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongScaling:
    """A stretch per dimension (longrope); queries and keys grow by `growth`."""

    factors: tuple[float, ...]
    growth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Only the first `rotated_dims` of `dims` turn, at the frequencies of the whole head."""

    rotated_dims: int
    factor: float = 1.0


Scaling = Llama3Scaling | YarnScaling | LongScaling | ProportionalScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotation of the first `dims` of a head; positions are multiplied by `scale`.

    `is_traditional` pairs neighbours (0, 1), otherwise element i is paired with i + dims / 2.
    """

    dims: int
    theta: float
    scale: float = 1.0
    is_traditional: bool = False
    scaling: Scaling | None = None


def _grown(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
