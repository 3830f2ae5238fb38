"""Memory that was measured: points with source, machine and instrument, and constants from them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from qwisp.errors import BadInput
from qwisp.memory.instruments.reading import INSTRUMENTS
from qwisp.spec.data_files import data_path
from qwisp.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One published figure: what ran, and what `instrument` said.

    `prompt_tokens` is None where the source does not say. `max_over_*` is how far above it a
    projection may lie; below it, never.
    """

    id: str
    model: str
    machine: str | None
    context_tokens: int
    prompt_tokens: int | None
    instrument: str
    measured_mib: int
    source: str
    max_over_mib: int | None = None
    max_over_percent: int | None = None

    @property
    def measured_bytes(self) -> int:
        """The figure in bytes."""
        return self.measured_mib * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What was fitted: Metal's scratch, the process beside it, and what each prompt token adds."""

    metal_scratch_bytes: int
    process_bytes: int
    prompt_bytes_per_token: int

    def scaled(self, name: str, percent: int) -> Constants:
        """Return a copy with one constant at so many percent: what a check must notice."""
        return replace(self, **{name: getattr(self, name) * percent // 100})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """An engine's constants with the points they come from and the setting they were fitted in."""

    engine: str
    instrument: str
    fitted_model: str
    fitted_machine: str
    date: str
    build: str
    expert_slots_per_layer: int
    chunk_tokens: int
    constants: Constants
    points: tuple[MeasuredPoint, ...]

    def is_own(self, model: str, machine: str | None) -> bool:
        """Whether the constants were measured on this model and machine, or are borrowed."""
        return model == self.fitted_model and machine == self.fitted_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPoint:
    """RSS with so many experts resident in every layer."""

    resident_experts_per_layer: int
    measured_bytes: int
    max_over_percent: int

    @property
    def id(self) -> str:
        """The point's name."""
        return f"{self.resident_experts_per_layer}-experts-a-layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyCalibration:
    """The published sweep over resident experts; `base_bytes` is everything but the experts."""

    model: str
    instrument: str
    base_bytes: int
    points: tuple[ResidencyPoint, ...]
    source: str


@cache
def load_calibration(engine: str = "fieldfare") -> MemoryCalibration:
    """Return the memory calibration of an engine; raises `BadInput` where nobody measured it.

    >>> load_calibration().instrument
    'phys_footprint'
    """
    values = _load(f"memory-{engine}.json", f"the memory of engine {engine!r} is not calibrated")
    points = tuple(MeasuredPoint(**point) for point in values["points"])
    assert {point.instrument for point in points} <= INSTRUMENTS.keys()
    return MemoryCalibration(
        engine=values["engine"],
        instrument=values["instrument"],
        fitted_model=values["fitted_on"]["model"],
        fitted_machine=values["fitted_on"]["machine"],
        date=values["date"],
        build=values["build"],
        expert_slots_per_layer=values["expert_slots_per_layer"],
        chunk_tokens=values["chunk_tokens"],
        constants=Constants(**values["constants"]),
        points=points,
    )


@cache
def load_residency() -> ResidencyCalibration:
    """Return the sweep over resident experts, with its own instrument."""
    values = _load("memory-expert-residency.json", "no sweep over resident experts")
    return ResidencyCalibration(
        model=values["model"],
        instrument=values["instrument"],
        base_bytes=values["constants"]["base_bytes"],
        points=tuple(ResidencyPoint(**point) for point in values["points"]),
        source=values["source"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaContext:
    """Device memory of a process with a CUDA context and no allocation."""

    context_bytes: int
    instrument: str
    machine: str
    date: str
    build: str


@cache
def load_cuda_context() -> CudaContext:
    """Return what a CUDA context alone takes, as measured."""
    values = _load("memory-cuda-context.json", "no CUDA context was measured")
    return CudaContext(**{name: values[name] for name in CudaContext.__dataclass_fields__})


def _load(name: str, what: str) -> dict[str, Any]:
    path = data_path("calibration", name)
    if not path.is_file():
        raise BadInput(what, "use --engine fieldfare, or leave the projection out")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
