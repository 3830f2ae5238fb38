"""Memory by model, context and machine, for the engine whose memory was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qwisp.memory.admission import LADDER_TOKENS
from qwisp.memory.calibration import MemoryCalibration, load_calibration
from qwisp.memory.engines.fieldfare import Fieldfare, resident
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Projection, Provenance
from qwisp.memory.weights import load_weights
from qwisp.spec.catalog import load_model
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec


class Cell(NamedTuple):
    """One model at one context cap on one machine, its prompt as long as the cap.

    `cache_bytes` follows from geometry and is always there. The rest is None where it is not
    measured: a model whose weights nobody split, a machine the engine does not run on.
    `measured_bytes` is the published figure of this very cell, at its own, shorter prompt.
    """

    model: str
    machine: str
    context_tokens: int
    cache_bytes: int
    needs_bytes: int | None
    provenance: Provenance
    usable_bytes: int
    measured_bytes: int | None
    instrument: str

    @property
    def fits(self) -> bool | None:
        """Whether the machine holds it; None while it is unmeasured."""
        return None if self.needs_bytes is None else self.needs_bytes <= self.usable_bytes

    @property
    def headroom_bytes(self) -> int | None:
        """What is left, negative if too much is needed; None while it is unmeasured."""
        return None if self.needs_bytes is None else self.usable_bytes - self.needs_bytes


def matrix(
    models: Iterable[str],
    machines: Iterable[MachineSpec],
    *,
    slots_per_layer: int | None = None,
    calibration: MemoryCalibration | None = None,
) -> list[Cell]:
    """Return a cell for every model, rung below its native maximum, and machine, in this order."""
    calibration = calibration or load_calibration()
    columns = list(machines)
    return [
        _cell(model, machine, context, slots_per_layer, calibration)
        for model in map(load_model, models)
        for context in _rungs(model)
        for machine in columns
    ]


def _rungs(model: ModelSpec) -> Iterator[int]:
    native = model.context_max_tokens or LADDER_TOKENS[-1]
    yield from (rung for rung in LADDER_TOKENS if rung <= native)


def _cell(
    model: ModelSpec,
    machine: MachineSpec,
    context: int,
    slots: int | None,
    calibration: MemoryCalibration,
) -> Cell:
    dialect = Fieldfare(chunk_tokens=calibration.chunk_tokens)
    memory = _memory(model, machine, context, slots, calibration)
    own_slots = slots in (None, calibration.expert_slots_per_layer)
    return Cell(
        model=model.name,
        machine=machine.name,
        context_tokens=context,
        cache_bytes=cache_bytes(model, context, dialect).total_bytes,
        needs_bytes=memory.total_bytes if memory else None,
        provenance=memory.provenance if memory else "unmeasured",
        usable_bytes=machine.usable_bytes,
        measured_bytes=_measured(model, machine, context, calibration) if own_slots else None,
        instrument=calibration.instrument,
    )


def _memory(
    model: ModelSpec,
    machine: MachineSpec,
    context: int,
    slots: int | None,
    calibration: MemoryCalibration,
) -> Projection | None:
    weights = load_weights(model.name)
    # The engine runs on unified memory only; nothing measured there speaks for a discrete device.
    if weights is None or not weights.has_experts or machine.memory_kind != "unified":
        return None
    return resident(
        model,
        context,
        context,
        calibration,
        machine=machine.name,
        slots_per_layer=slots,
        weights=weights,
    )


def _measured(
    model: ModelSpec, machine: MachineSpec, context: int, calibration: MemoryCalibration
) -> int | None:
    found = [
        point.measured_bytes
        for point in calibration.points
        if (point.model, point.machine, point.context_tokens) == (model.name, machine.name, context)
        and point.instrument == calibration.instrument
    ]
    return max(found, default=None)
