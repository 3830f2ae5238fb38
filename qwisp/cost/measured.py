"""Measured times as a calibration keeps them: one row a measurement, with where it came from.

The published figures and what `qwisp calibrate` measures on this machine have the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from qwisp.cost.model import ChunkRule

Term = Literal["round", "chunk", "token", "depth"]


class PrefillPoint(NamedTuple):
    """`seconds` that prefilling `tokens` from position `start` took.

    It ran in `rounds` rounds of `chunks` chunks in all. Inside the time `width` lanes (0: none)
    decoded `steps` steps over `rows` cache rows. `used` points are fitted, the others predicted.
    `seconds` is the median of `times` timings.
    """

    label: str
    seconds: float
    rounds: int
    chunks: int
    start: int
    tokens: int
    width: int = 0
    steps: int = 1
    rows: int = 0
    used: bool = True
    times: int = 1


class DecodePoint(NamedTuple):
    """`seconds` of one decode step with `width` lanes and `rows` cache rows in use in all.

    It is the median of `times` timings.
    """

    label: str
    seconds: float
    width: int
    rows: int = 0
    used: bool = True
    times: int = 1


class CopyPoint(NamedTuple):
    """`seconds` that copying `num_bytes` took."""

    label: str
    seconds: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything a cost model of one model on one machine is fitted from.

    `terms` are the coefficients that the prefill points can tell apart; the others are 0. `error`
    says how the times are uncertain: `relative` to their length as timings are, or `absolute`, all
    alike, as figures rounded to one digit after the point are.
    `window_weight` is the attention work of all window-limited layers, per row inside the window
    of `window_tokens`, against that of all full layers per row. `copy_bytes_per_s` stands in
    where no copy was measured.
    """

    name: str
    model: str
    machine: str
    chunk_tokens: int
    chunk_rule: ChunkRule
    terms: tuple[Term, ...] = ("round", "chunk", "token", "depth")
    error: Literal["relative", "absolute"] = "relative"
    window_weight: float = 0.0
    window_tokens: int = 0
    prefill: tuple[PrefillPoint, ...] = ()
    decode: tuple[DecodePoint, ...] = ()
    copies: tuple[CopyPoint, ...] = ()
    copy_bytes_per_s: int = 0
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
