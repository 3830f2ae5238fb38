"""The published engine whose figures are the reference: experts are streamed from disk into slots.

The cache is allocated at the context cap. What causes a term of its memory is its input:

    phys_footprint = common weights (mapped: 0) + expert slots + process + Metal scratch
                     + prompt + cache
    peak Metal     = Metal scratch + cache

Weights that are mapped from a file are clean pages of the page cache: `phys_footprint` does not
charge them. Slots are filled by reads into memory of the process and count in full. What is left
grows with the prompt (its text, its ids) and not with the cap. With the slots counted in every
layer, as the engine opens them, one constant covers both measured models: 385.5 MiB is left on
Gemma 4 and 379.6 MiB on Qwen 3.6, both at the 256K cap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from qwisp.errors import BadInput
from qwisp.memory.calibration import (
    Constants,
    MemoryCalibration,
    ResidencyCalibration,
    load_calibration,
)
from qwisp.memory.dialect import Dialect, ring_rows
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Projection, Provenance, Term, project
from qwisp.memory.weights import Weights, load_weights
from qwisp.spec.catalog import load_model
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes

F16_BYTES = 2
PAGE_BYTES = 16384  # Apple silicon; expert blobs start on page boundaries to be read directly
GROUP_BITS = 32  # a scale and a bias of 16 bits for each group of weights


def expert_stride_bytes(hidden: int, inner: int, *, bits: int = 4, group: int = 64) -> int:
    """Return the page-rounded bytes of one expert: three `hidden x inner` matrices, quantised.

    Each group of `group` weights carries a 16-bit scale and bias (MLX affine quantisation).

    >>> expert_stride_bytes(2816, 704), expert_stride_bytes(2048, 512)
    (3358720, 1769472)
    """
    weights = 3 * hidden * inner
    size = weights * bits // 8 + weights // group * GROUP_BITS // 8
    return -(-size // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """A cache of `count` experts `per layer` or `in all`; the scope is part of the number.

    Published figures differ in it: 51 MiB for Gemma 4 is 16 slots in all, 1.13 GB for Qwen 3.6 is
    16 slots in each of 40 layers.

    >>> ExpertSlots(count=16, scope="in all", layers=30, stride_bytes=3358720).num_bytes
    53739520
    >>> ExpertSlots(count=16, scope="per layer", layers=40, stride_bytes=1769472).num_bytes
    1132462080
    """

    count: int
    scope: Literal["per layer", "in all"]
    layers: int
    stride_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots once they are filled."""
        slots = self.count * (self.layers if self.scope == "per layer" else 1)
        return slots * self.stride_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fieldfare(Dialect):
    """Rings of window and chunk under chunked prefill, whole contexts without; f16 conv tails."""

    name: ClassVar[str] = "fieldfare"
    chunk_field: ClassVar[str | None] = "chunk_tokens"
    has_own_prefill: ClassVar[bool] = True
    streams_experts: ClassVar[bool] = True

    chunk_tokens: int = 128
    chunked: bool = True

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of one ring; without chunks nothing leaves it before the prompt ends."""
        if not self.chunked:
            return context_tokens
        return ring_rows(context_tokens, window_tokens, self.chunk_tokens)

    def conv_element_bytes(self, spec: ModelSpec) -> int:
        """Return f16, whatever the model's type."""
        return F16_BYTES

    def unchunked(self, context_tokens: int) -> Self:
        """Return the dialect without chunks."""
        return replace(self, chunked=False)

    def beside_caches(
        self,
        model: ModelSpec,
        weights: Weights | int | None,
        machine: MachineSpec | None,
        *,
        prompt_tokens: int,
        slots_per_layer: int | None = None,
    ) -> list[Term]:
        """Return the measured terms of a process that streams; weights given in bytes are held."""
        if isinstance(weights, int):
            return Dialect.beside_caches(self, model, weights, machine, prompt_tokens=prompt_tokens)
        return streamed_terms(
            model,
            prompt_tokens,
            load_calibration(self.name),
            machine=machine.name if machine else None,
            slots_per_layer=slots_per_layer,
            weights=weights,
        )


def streamed_terms(
    model: ModelSpec,
    prompt_tokens: int,
    calibration: MemoryCalibration,
    *,
    machine: str | None = None,
    slots_per_layer: int | None = None,
    weights: Weights | None = None,
    constants: Constants | None = None,
) -> list[Term]:
    """Return what the process of a server holds beside its cache.

    Raises `BadInput` when the model's split into common weights and experts is not known.
    """
    weights = weights or weights_of(model)
    fitted = constants or calibration.constants
    how: Provenance = "measured here" if calibration.is_own(model.name, machine) else "borrowed"
    where = f"{calibration.fitted_model} on {calibration.fitted_machine}, {calibration.date}"
    return [
        mapped_weights(weights),
        expert_slots(weights, slots_per_layer or calibration.expert_slots_per_layer),
        Term(name="process", num_bytes=fitted.process_bytes, provenance=how, note=where),
        Term(
            name="metal scratch",
            num_bytes=fitted.metal_scratch_bytes,
            provenance=how,
            note=where,
        ),
        Term(
            name="prompt",
            num_bytes=fitted.prompt_bytes_per_token * prompt_tokens,
            provenance=how,
            note=f"{fitted.prompt_bytes_per_token} bytes a token of the prompt: {where}",
        ),
    ]


def resident(
    model: ModelSpec,
    context_tokens: int,
    prompt_tokens: int,
    calibration: MemoryCalibration,
    *,
    machine: str | None = None,
    slots_per_layer: int | None = None,
    weights: Weights | None = None,
    constants: Constants | None = None,
) -> Projection:
    """Return the projected `phys_footprint` of one server at a context cap and a prompt.

    Raises `BadInput` when the model's split into common weights and experts is not known.
    """
    beside = streamed_terms(
        model,
        prompt_tokens,
        calibration,
        machine=machine,
        slots_per_layer=slots_per_layer,
        weights=weights,
        constants=constants,
    )
    return project([*beside, _cache(model, context_tokens, calibration.chunk_tokens)])


def peak_metal(
    model: ModelSpec,
    context_tokens: int,
    calibration: MemoryCalibration,
    constants: Constants | None = None,
) -> Projection:
    """Return the projected peak of Metal's allocations: the cache at the cap, and its scratch."""
    scratch = (constants or calibration.constants).metal_scratch_bytes
    return project(
        [
            Term(name="metal scratch", num_bytes=scratch, provenance="measured here"),
            _cache(model, context_tokens, calibration.chunk_tokens),
        ]
    )


def expert_residency(
    calibration: ResidencyCalibration, experts_per_layer: int, base_bytes: int | None = None
) -> Projection:
    """Return the projected RSS with so many experts of every layer resident."""
    weights = weights_of(load_model(calibration.model))
    experts = ExpertSlots(
        count=experts_per_layer,
        scope="per layer",
        layers=weights.expert_layers,
        stride_bytes=weights.expert_stride_bytes,
    )
    base = calibration.base_bytes if base_bytes is None else base_bytes
    return project(
        [
            Term(name="base", num_bytes=base, provenance="measured here"),
            Term(name="experts", num_bytes=experts.num_bytes, provenance="exact"),
        ]
    )


def weights_of(model: ModelSpec) -> Weights:
    """Return the published weights of a model; raises `BadInput` when its split is not known."""
    weights = load_weights(model.name)
    if weights is None or not weights.has_experts:
        raise BadInput(
            f"the split of {model.name!r} into common weights and experts is not measured",
            "use another engine, or leave the resident projection blank",
        )
    return weights


def mapped_weights(weights: Weights) -> Term:
    """Return the common weights as what they are to the instrument: beside the footprint."""
    return Term(
        name="common weights",
        num_bytes=weights.common_bytes,
        provenance="exact",
        note="mapped from their file: page cache, which phys_footprint does not count",
        is_counted=False,
    )


def expert_slots(weights: Weights, slots_per_layer: int) -> Term:
    """Return the filled slot cache."""
    slots = ExpertSlots(
        count=slots_per_layer,
        scope="per layer",
        layers=weights.expert_layers,
        stride_bytes=weights.expert_stride_bytes,
    )
    stride = format_bytes(weights.expert_stride_bytes)
    return Term(
        name="expert slots",
        num_bytes=slots.num_bytes,
        provenance="exact",
        note=f"{slots.count} per layer x {slots.layers} layers x {stride}",
    )


def _cache(model: ModelSpec, context_tokens: int, chunk_tokens: int) -> Term:
    size = cache_bytes(model, context_tokens, Fieldfare(chunk_tokens=chunk_tokens)).total_bytes
    return Term(
        name="cache", num_bytes=size, provenance="exact", note="allocated at the context cap"
    )
