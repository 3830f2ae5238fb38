"""Every measured point, projected again: under one of them is a failure, so is far above."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from qwisp.memory.calibration import (
    Constants,
    MeasuredPoint,
    MemoryCalibration,
    load_calibration,
    load_residency,
)
from qwisp.memory.engines.fieldfare import expert_residency, peak_metal, resident
from qwisp.memory.instruments.reading import Reading, difference_bytes
from qwisp.spec.catalog import load_model
from qwisp.units import MIB


class Checked(NamedTuple):
    """A projection beside its measurement, both by the same instrument.

    `max_over_bytes` is None where the only bar is "never under".
    """

    id: str
    model: str
    instrument: str
    context_tokens: int | None
    prompt_tokens: int | None
    measured_bytes: int
    projected_bytes: int
    max_over_bytes: int | None

    @property
    def over_bytes(self) -> int:
        """Projected minus measured; negative is under."""
        return difference_bytes(
            Reading(self.instrument, self.projected_bytes),
            Reading(self.instrument, self.measured_bytes),
        )

    @property
    def holds(self) -> bool:
        """Whether the projection is never under and within its bar."""
        bar = self.max_over_bytes
        return self.over_bytes >= 0 and (bar is None or self.over_bytes <= bar)


def validate(
    calibration: MemoryCalibration | None = None,
    constants: Constants | None = None,
    base_bytes: int | None = None,
) -> list[Checked]:
    """Return every measured point with its projection; arguments replace the shipped constants."""
    calibration = calibration or load_calibration()
    checked = [check_point(point, calibration, constants) for point in calibration.points]
    return [*checked, *_residency(base_bytes)]


def check_point(
    point: MeasuredPoint, calibration: MemoryCalibration, constants: Constants | None = None
) -> Checked:
    """Return one point with its projection."""
    return Checked(
        id=point.id,
        model=point.model,
        instrument=point.instrument,
        context_tokens=point.context_tokens,
        prompt_tokens=point.prompt_tokens,
        measured_bytes=point.measured_bytes,
        projected_bytes=project_point(point, calibration, constants),
        max_over_bytes=_bar_bytes(point),
    )


def project_point(
    point: MeasuredPoint, calibration: MemoryCalibration, constants: Constants | None = None
) -> int:
    """Return the bytes projected for what a point measured, by the point's own instrument.

    A prompt the source does not state counts as empty, the least it can have been.
    """
    model = load_model(point.model)
    if point.instrument == "metal_peak":
        return peak_metal(model, point.context_tokens, calibration, constants).known_bytes
    return resident(
        model,
        point.context_tokens,
        point.prompt_tokens or 0,
        calibration,
        machine=point.machine,
        constants=constants,
    ).known_bytes


def _bar_bytes(point: MeasuredPoint) -> int | None:
    if point.max_over_mib is not None:
        return point.max_over_mib * MIB
    if point.max_over_percent is not None:
        return int(Fraction(point.max_over_percent, 100) * point.measured_bytes)
    return None


def _residency(base_bytes: int | None) -> Iterator[Checked]:
    sweep = load_residency()
    for point in sweep.points:
        experts = point.resident_experts_per_layer
        projected = expert_residency(sweep, experts, base_bytes).known_bytes
        yield Checked(
            id=point.id,
            model=sweep.model,
            instrument=sweep.instrument,
            context_tokens=None,
            prompt_tokens=None,
            measured_bytes=point.measured_bytes,
            projected_bytes=projected,
            max_over_bytes=int(Fraction(point.max_over_percent, 100) * point.measured_bytes),
        )
