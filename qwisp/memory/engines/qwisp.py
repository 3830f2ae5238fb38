"""This project's own engine: exact rows, a ring of window and prefill chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qwisp.memory.calibration import load_calibration, load_cuda_context
from qwisp.memory.dialect import Dialect, ring_rows
from qwisp.memory.projection import Term
from qwisp.spec.machine import MachineSpec

DEFAULT_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwisp(Dialect):
    """Exact rows; a sliding window keeps `window + chunk_tokens` rows."""

    name: ClassVar[str] = "qwisp"
    chunk_field: ClassVar[str | None] = "chunk_tokens"
    writes_scores: ClassVar[bool] = True

    chunk_tokens: int = DEFAULT_CHUNK_TOKENS

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of one ring."""
        return ring_rows(context_tokens, window_tokens, self.chunk_tokens)

    def overhead(self, machine: MachineSpec | None) -> Term:
        """Return a CUDA context on a device with its own memory, else what another engine takes."""
        name = "runtime overhead"
        if machine is not None and machine.memory_kind == "vram":
            cuda = load_cuda_context()
            return Term(
                name=name,
                num_bytes=cuda.context_bytes,
                provenance="measured here" if machine.name == cuda.machine else "borrowed",
                note=f"CUDA context alone: {cuda.machine}, {cuda.build}, {cuda.date}",
            )
        measured = load_calibration("fieldfare")
        size = measured.constants.process_bytes + measured.constants.metal_scratch_bytes
        note = f"process and scratch of another engine: {measured.fitted_model}, {measured.date}"
        return Term(name=name, num_bytes=size, provenance="borrowed", note=note)
