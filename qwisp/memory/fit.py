"""Does it fit: memory by term, the ladder, the largest and the recommended context of a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qwisp.cost.model import PS_PER_S, CostModel
from qwisp.cost.offered import solo_prefill_ps
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.projection import Projection
from qwisp.memory.refusal import MemoryRefusal
from qwisp.memory.transient import ChunkPlan, widest_chunk

# A prompt that fills the context is read once before its first token; who waits longer than five
# minutes for that is better served by a shorter context.
PATIENCE_S = 300.0


class Rung(NamedTuple):
    """A context of the ladder: what every lane at it needs, and how long its prompt takes."""

    context_tokens: int
    cache_bytes: int
    needs_bytes: int
    broken_rule: str | None
    prefill_s: float | None

    @property
    def fits(self) -> bool:
        """Whether the rule admits it."""
        return self.broken_rule is None


class Recommended(NamedTuple):
    """The context to take, or None, and the reason."""

    context_tokens: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer of `fit`. `context_tokens` is the one asked for, else the one to take."""

    admission: ContextAdmission
    context_tokens: int
    memory: Projection
    refusal: MemoryRefusal | None
    rungs: tuple[Rung, ...]
    largest_tokens: int | None
    recommended: Recommended
    chunk: ChunkPlan | None
    log_lines: tuple[str, ...]
    cost_name: str | None

    @property
    def usable_bytes(self) -> int | None:
        """What the machine gives one process; None without a machine."""
        return self.admission.machine.usable_bytes if self.admission.machine else None

    @property
    def is_decided(self) -> bool:
        """False where the weights are not known: then only what does not fit can be told.

        A runtime's overhead is small beside them, so it may be missing.
        """
        return self.refusal is not None or all(
            term.name != "weights" for term in self.memory.unmeasured
        )


def fit(
    admission: ContextAdmission,
    context_tokens: int | None = None,
    *,
    cost: CostModel | None = None,
    patience_s: float = PATIENCE_S,
) -> Fit:
    """Return memory by term, the ladder and what to take, for a known model.

    `cost` is the calibration of this model on this machine, if there is one: with it every rung
    has a prefill time, and the recommended context is the largest that fits and is read within
    `patience_s`.
    """
    rungs = tuple(_rungs(admission, cost))
    largest = admission.largest()
    recommended = _recommend(admission, rungs, largest, patience_s)
    context = context_tokens or recommended.context_tokens or largest or admission.ladder[0]
    memory, refusal = admission.memory(context), admission.check(context)
    return Fit(
        admission=admission,
        context_tokens=context,
        memory=memory,
        refusal=refusal,
        rungs=rungs,
        largest_tokens=largest,
        recommended=recommended,
        chunk=None if refusal else _chunk(admission, context, memory),
        log_lines=_log_lines(admission, context, memory),
        cost_name=cost.name if cost else None,
    )


def _rungs(admission: ContextAdmission, cost: CostModel | None) -> list[Rung]:
    times = [None] * len(admission.ladder)
    if cost is not None and cost.has_prefill:
        picoseconds = solo_prefill_ps(cost, np.array(admission.ladder))
        times = [float(ps) / PS_PER_S for ps in picoseconds.tolist()]
    rungs = []
    for context, seconds in zip(admission.ladder, times, strict=True):
        broken = admission.broken(context)
        rungs.append(
            Rung(
                context,
                admission.cache_bytes(context),
                admission.memory(context).known_bytes,
                broken.rule if broken else None,
                seconds,
            )
        )
    return rungs


def _recommend(
    admission: ContextAdmission, rungs: tuple[Rung, ...], largest: int | None, patience_s: float
) -> Recommended:
    fitting = [rung for rung in rungs if rung.fits]
    if not fitting:
        if largest is None:
            return Recommended(None, "no context fits")
        return Recommended(largest, "the largest that fits, below every rung")
    top = fitting[-1]
    if top.prefill_s is None:
        return Recommended(None, "times are not measured here, so only memory could be judged")
    quick = [rung for rung in fitting if (rung.prefill_s or 0) <= patience_s]
    if not quick:
        return Recommended(
            fitting[0].context_tokens,
            f"the smallest rung; even its prompt takes longer than {patience_s:,.0f} s",
        )
    chosen = quick[-1]
    seconds = f"its prompt is read in {chosen.prefill_s:,.0f} s"
    if chosen == top:
        return Recommended(chosen.context_tokens, f"the largest rung that fits; {seconds}")
    above = rungs[rungs.index(chosen) + 1]
    return Recommended(
        chosen.context_tokens,
        f"{seconds}; the next rung takes {above.prefill_s:,.0f} s, above {patience_s:,.0f}:"
        " time is the limit here, not memory",
    )


def _chunk(admission: ContextAdmission, context: int, memory: Projection) -> ChunkPlan | None:
    if (
        admission.machine is None
        or admission.model is None
        or admission.prefill == "unchunked"
        or admission.dialect.has_own_prefill
    ):
        return None
    others = sum(
        term.num_bytes or 0
        for term in memory.terms
        if term.is_counted and term.name != "prefill transient"
    )
    free = admission.machine.usable_bytes - others
    quantised = not admission.dialect.is_16_bit
    return widest_chunk(admission.model, context, free, is_quantised=quantised)


def _log_lines(admission: ContextAdmission, context: int, memory: Projection) -> tuple[str, ...]:
    dialect, pool = admission.dialect, None
    whole = dialect.engine_context(context, admission.lanes)
    weights = next((term for term in memory.terms if term.name == "weights"), None)
    if dialect.is_pooled and admission.machine and weights and weights.num_bytes is not None:
        pool = admission.machine.usable_bytes - weights.num_bytes
    return dialect.log_lines(admission.known_model, whole, pool)
