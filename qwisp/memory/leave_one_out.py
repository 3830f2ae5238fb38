"""Leave one out: fit on all points but one, predict that one. Errors may be negative.

The shipped constants have seen every point, so that they lie under none proves little. This does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from qwisp.memory.calibration import MemoryCalibration, load_calibration, load_residency
from qwisp.memory.engines.fieldfare import expert_residency
from qwisp.memory.fit_constants import fit_base_bytes, fit_constants
from qwisp.memory.validate import project_point


class LeftOut(NamedTuple):
    """A measured point and what the others predict for it."""

    id: str
    instrument: str
    measured_bytes: int
    predicted_bytes: int

    @property
    def error_bytes(self) -> int:
        """Predicted minus measured; negative is an under-prediction."""
        return self.predicted_bytes - self.measured_bytes


def leave_one_out(calibration: MemoryCalibration | None = None) -> list[LeftOut]:
    """Return, for every measured point, the prediction of a fit that has not seen it."""
    calibration = calibration or load_calibration()
    report = []
    for point in calibration.points:
        others = [other for other in calibration.points if other is not point]
        constants = fit_constants(others, calibration)
        predicted = project_point(point, calibration, constants)
        report.append(LeftOut(point.id, point.instrument, point.measured_bytes, predicted))
    return [*report, *_residency()]


def _residency() -> Iterator[LeftOut]:
    sweep = load_residency()
    for point in sweep.points:
        others = [other for other in sweep.points if other is not point]
        base = fit_base_bytes(others, sweep)
        experts = point.resident_experts_per_layer
        predicted = expert_residency(sweep, experts, base).known_bytes
        yield LeftOut(point.id, sweep.instrument, point.measured_bytes, predicted)
