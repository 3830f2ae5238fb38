"""Resident memory of a server that streams experts, term by term; what causes a term is its input.

    phys_footprint = common weights (mapped: 0) + expert slots + process + Metal scratch
                     + prompt + cache
    peak Metal     = Metal scratch + cache

Weights that are mapped from a file are clean pages of the page cache: `phys_footprint` does not
charge them. Slots are filled by reads into memory of the process and count in full. The cache is
allocated at the context cap. What is left grows with the prompt (its text, its ids) and not with
the cap. With the slots counted in every layer, as the engine opens them, one constant covers both
measured models: 385.5 MiB is left on Gemma 4 and 379.6 MiB on Qwen 3.6, both at the 256K cap.
"""

from __future__ import annotations

from qwisp.errors import BadInput
from qwisp.memory.calibration import Constants, MemoryCalibration, ResidencyCalibration
from qwisp.memory.dialect_fieldfare import Fieldfare
from qwisp.memory.experts import ExpertSlots
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Projection, Provenance, Term, project
from qwisp.memory.weights import Weights, load_weights
from qwisp.spec.catalog import load_model
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes


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
    weights = weights or weights_of(model)
    fitted = constants or calibration.constants
    how: Provenance = "measured here" if calibration.is_own(model.name, machine) else "borrowed"
    where = f"{calibration.fitted_model} on {calibration.fitted_machine}, {calibration.date}"
    return project(
        [
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
            _cache(model, context_tokens, calibration.chunk_tokens),
        ]
    )


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
