"""Constants from measured points: the lowest line that never lies under one of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from qwisp.errors import BadInput
from qwisp.memory.calibration import (
    Constants,
    MeasuredPoint,
    MemoryCalibration,
    ResidencyCalibration,
    ResidencyPoint,
)
from qwisp.memory.engines.fieldfare import expert_residency, peak_metal, resident
from qwisp.spec.catalog import load_model


class Left(NamedTuple):
    """What a measurement leaves once the exact terms are taken off."""

    prompt_tokens: int
    left_bytes: int


def fit_constants(points: Sequence[MeasuredPoint], calibration: MemoryCalibration) -> Constants:
    """Return the constants that `points` ask for, in whole bytes.

    Metal's scratch is what its peaks leave over the cache (the largest, should they differ). The
    rest of the footprint is a line over the prompt: of all lines that are nowhere under a point,
    the one with the least sum of distances.
    """
    nothing = Constants(metal_scratch_bytes=0, process_bytes=0, prompt_bytes_per_token=0)
    metal = [
        point.measured_bytes - _exact_metal_bytes(point, calibration, nothing)
        for point in points
        if point.instrument == "metal_peak"
    ]
    scratch = max(metal, default=0)
    left = [
        Left(
            point.prompt_tokens or 0,
            point.measured_bytes - _exact_resident_bytes(point, calibration, nothing) - scratch,
        )
        for point in points
        if point.instrument == calibration.instrument
    ]
    base, slope = lowest_line_above(left)
    return Constants(metal_scratch_bytes=scratch, process_bytes=base, prompt_bytes_per_token=slope)


def fit_base_bytes(points: Sequence[ResidencyPoint], sweep: ResidencyCalibration) -> int:
    """Return the least base over which no point of the sweep over resident experts lies."""
    return max(
        point.measured_bytes
        - expert_residency(sweep, point.resident_experts_per_layer, base_bytes=0).known_bytes
        for point in points
    )


def lowest_line_above(points: Sequence[Left]) -> tuple[int, int]:
    """Return (base, slope) in whole bytes of the tightest line nowhere under `points`.

    The best line touches two points (or, level, one): a linear programme in two unknowns.

    >>> lowest_line_above([Left(0, 10), Left(10, 30), Left(20, 40)])
    (10, 2)
    """
    if not points:
        raise BadInput("no points to fit", "give at least one measured point")
    candidates = [(Fraction(max(point.left_bytes for point in points)), Fraction(0))]
    for a, b in combinations(points, 2):
        if a.prompt_tokens != b.prompt_tokens:
            slope = Fraction(b.left_bytes - a.left_bytes, b.prompt_tokens - a.prompt_tokens)
            candidates.append((a.left_bytes - slope * a.prompt_tokens, slope))
    covering = [
        (base, slope)
        for base, slope in candidates
        if slope >= 0 and all(base + slope * p.prompt_tokens >= p.left_bytes for p in points)
    ]
    _, slope = min(
        covering,
        key=lambda line: sum(line[0] + line[1] * p.prompt_tokens - p.left_bytes for p in points),
    )
    whole_slope = -(-slope.numerator // slope.denominator)
    # The slope was rounded up, so the base may give back what the shortest prompt gained.
    return max(p.left_bytes - whole_slope * p.prompt_tokens for p in points), whole_slope


def _exact_metal_bytes(
    point: MeasuredPoint, calibration: MemoryCalibration, nothing: Constants
) -> int:
    model = load_model(point.model)
    return peak_metal(model, point.context_tokens, calibration, nothing).known_bytes


def _exact_resident_bytes(
    point: MeasuredPoint, calibration: MemoryCalibration, nothing: Constants
) -> int:
    model = load_model(point.model)
    return resident(model, point.context_tokens, 0, calibration, constants=nothing).known_bytes
