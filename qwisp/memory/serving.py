"""One serving configuration and the memory it takes at a context, by term, for any engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qwisp.memory.calibration import load_calibration, load_cuda_context
from qwisp.memory.dialect import Dialect
from qwisp.memory.dialect_fieldfare import Fieldfare
from qwisp.memory.dialect_qwisp import Qwisp
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Projection, Term, project
from qwisp.memory.resident import resident, weights_of
from qwisp.memory.side_budgets import SideBudgets, side_terms
from qwisp.memory.transient import transient_bytes
from qwisp.memory.variants import chunk_of, engine_context, is_16_bit, unchunked
from qwisp.memory.weights import Weights
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes, format_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a model is served: the engine's dialect, lanes, prefill, weights and side budgets.

    `weights_bytes` wins over `weights`; with neither the term is unmeasured. `prompt_tokens` is
    the longest prompt (None: the whole context). `machine` says whose overhead counts.
    """

    model: ModelSpec
    dialect: Dialect = field(default_factory=Qwisp)
    lanes: int = 1
    chunked: bool = True
    weights: Weights | None = None
    weights_bytes: int | None = None
    slots_per_layer: int | None = None
    prompt_tokens: int | None = None
    side: SideBudgets = field(default_factory=SideBudgets)
    machine: MachineSpec | None = None

    @property
    def engine(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    @property
    def chunk_tokens(self) -> int:
        """The prefill chunk: the dialect's, or 1 where prompts pass through the decode path."""
        return (chunk_of(self.dialect) or 1) if self.chunked else 1

    @property
    def is_quantised(self) -> bool:
        """Whether cache rows are kept in fewer than 16 bits."""
        return not is_16_bit(self.dialect)

    def cache_dialect(self, context_tokens: int) -> Dialect:
        """Return the dialect that allocates: without chunks, windows keep whole contexts."""
        return self.dialect if self.chunked else unchunked(self.dialect, context_tokens)


def serving_memory(serving: Serving, context_tokens: int) -> Projection:
    """Return every term of `serving` with each lane at `context_tokens`."""
    if isinstance(serving.dialect, Fieldfare) and serving.weights_bytes is None:
        return _streamed(serving, context_tokens)
    return project(
        [
            _weights(serving),
            _overhead(serving),
            kv_term(serving, context_tokens),
            _transient(serving, context_tokens),
            *_side(serving, context_tokens),
        ]
    )


def kv_term(serving: Serving, context_tokens: int) -> Term:
    """Return the caches of all lanes; exact, because they follow from geometry and dialect."""
    dialect = serving.cache_dialect(context_tokens)
    whole = engine_context(dialect, context_tokens, serving.lanes)
    size = cache_bytes(serving.model, whole, dialect).total_bytes
    if dialect.sequences == serving.lanes > 1:
        note = f"{serving.lanes} sequences of {format_tokens(context_tokens)}"
        return Term(name="cache", num_bytes=size, provenance="exact", note=note)
    at = f"at {format_tokens(context_tokens)}"
    note = at if serving.lanes == 1 else f"{serving.lanes} lanes x {format_bytes(size)} {at}"
    return Term(name="cache", num_bytes=serving.lanes * size, provenance="exact", note=note)


def _streamed(serving: Serving, context_tokens: int) -> Projection:
    calibration = load_calibration("fieldfare")
    one = resident(
        serving.model,
        context_tokens,
        context_tokens if serving.prompt_tokens is None else serving.prompt_tokens,
        calibration,
        machine=serving.machine.name if serving.machine else None,
        slots_per_layer=serving.slots_per_layer,
        weights=serving.weights or weights_of(serving.model),
    )
    kept = [term for term in one.terms if term.name != "cache"]
    return project([*kept, kv_term(serving, context_tokens), *_side(serving, context_tokens)])


def _side(serving: Serving, context_tokens: int) -> Iterator[Term]:
    return side_terms(serving.side, serving.model, serving.dialect, serving.lanes, context_tokens)


def _weights(serving: Serving) -> Term:
    ranks = getattr(serving.dialect, "tensor_parallel", 1)
    share = f", one of {ranks} shares" if ranks > 1 else ""
    if serving.weights_bytes is not None:
        size = -(-serving.weights_bytes // ranks)
        return Term(name="weights", num_bytes=size, provenance="exact", note=f"as given{share}")
    weights = serving.weights
    if weights is None:
        note = "size of the weights not known: give --weights SIZE"
        return Term(name="weights", num_bytes=None, provenance="unmeasured", note=note)
    where = weights.source if weights.is_own else "a published 4-bit pack of this model"
    return Term(
        name="weights",
        num_bytes=-(-weights.file_bytes // ranks),
        provenance="exact" if weights.is_own else "borrowed",
        note=where + share,
    )


def _overhead(serving: Serving) -> Term:
    name = "runtime overhead"
    if serving.engine != "qwisp":
        note = f"nobody measured {serving.engine} for this project"
        return Term(name=name, num_bytes=None, provenance="unmeasured", note=note)
    if serving.machine is not None and serving.machine.memory_kind == "vram":
        cuda = load_cuda_context()
        own = serving.machine.name == cuda.machine
        return Term(
            name=name,
            num_bytes=cuda.context_bytes,
            provenance="measured here" if own else "borrowed",
            note=f"CUDA context alone: {cuda.machine}, {cuda.build}, {cuda.date}",
        )
    measured = load_calibration("fieldfare")
    size = measured.constants.process_bytes + measured.constants.metal_scratch_bytes
    note = f"process and scratch of another engine: {measured.fitted_model}, {measured.date}"
    return Term(name=name, num_bytes=size, provenance="borrowed", note=note)


def _transient(serving: Serving, context_tokens: int) -> Term | None:
    if serving.engine not in ("qwisp", "mlx-lm"):
        return None  # part of the engine's own, unmeasured overhead
    name, chunk = "prefill transient", serving.chunk_tokens
    size = transient_bytes(
        serving.model,
        context_tokens,
        chunk,
        dialect=serving.dialect,
        is_quantised=serving.is_quantised,
    )
    if size is None:
        note = "hidden size or query heads not known"
        return Term(name=name, num_bytes=None, provenance="unmeasured", note=note)
    if size == 0:
        return None
    note = f"one prompt's chunk of {chunk:,} where no fused kernel exists"
    return Term(name=name, num_bytes=size, provenance="borrowed", note=note)
