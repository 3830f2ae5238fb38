"""Which context fits: one rule, asked by every surface, and one refusal that all of them render.

Every limit is one constant of this module, so that a checker and a loader cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal

from qwisp.errors import BadInput
from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Projection, Term, project
from qwisp.memory.refusal import MemoryRefusal, Offer, Rule
from qwisp.memory.side_budgets import SideBudgets, side_terms
from qwisp.memory.transient import CHUNKS_TOKENS, transient_term
from qwisp.memory.weights import Weights, load_weights
from qwisp.spec.catalog import load_model, model_names
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, KIB, format_bytes, format_tokens

LADDER_TOKENS = tuple(KIB * k for k in (4, 8, 16, 32, 64, 96, 128, 192, 256))
# A bound on bytes and not on tokens: the caches of two models of one size, kept without rings,
# differ elevenfold, so that no single context would be right for both.
UNCHUNKED_KV_BUDGET_BYTES = 16 * GIB
MAX_LANES = 4096


@dataclass(frozen=True, slots=True)
class ContextAdmission:
    """The rule for one model on one machine.

    `model` None means that the family is not known yet: whatever any supported model could run is
    admitted, and the strict check is a new `ContextAdmission` with the model that was loaded.
    `machine` None leaves memory unchecked. `weights` is a `Weights`, or bytes, or None to look the
    model's own up. `dialect` is the engine's (this project's by default).

    >>> from qwisp.spec.catalog import load_model
    >>> gemma = ContextAdmission(load_model("gemma-4-26b-a4b"), prefill="unchunked")
    >>> gemma.check(65536) is None, gemma.check(98304).rule
    (True, 'unchunked KV budget')
    """

    model: ModelSpec | None
    machine: MachineSpec | None = None
    _: KW_ONLY
    prefill: Literal["chunked", "unchunked"] = "chunked"
    weights: Weights | int | None = None
    dialect: Dialect = field(default_factory=Qwisp)
    lanes: int = 1
    slots_per_layer: int | None = None
    prompt_tokens: int | None = None
    side: SideBudgets = field(default_factory=SideBudgets)

    def __post_init__(self) -> None:
        if self.prefill not in ("chunked", "unchunked"):
            raise BadInput(f"prefill {self.prefill!r} is not known", "use chunked or unchunked")
        if not 1 <= self.lanes <= MAX_LANES:
            raise BadInput(f"{self.lanes} lanes", f"give 1 to {MAX_LANES:,} lanes")

    @property
    def native_max_tokens(self) -> int:
        """The most positions the model was made for; of any supported model while it is unknown.

        A model that states none is bounded by the top of the ladder.
        """
        if self.model is None:
            return max(other.native_max_tokens for other in self._supported())
        return self.model.context_max_tokens or LADDER_TOKENS[-1]

    @property
    def ladder(self) -> tuple[int, ...]:
        """The rungs up to the native maximum, which is the only one where it is below 4K."""
        native = self.native_max_tokens
        return tuple(rung for rung in LADDER_TOKENS if rung <= native) or (native,)

    @property
    def legal(self) -> tuple[int, ...]:
        """The rungs that are admitted."""
        return tuple(rung for rung in self.ladder if self.broken(rung) is None)

    @property
    def known_model(self) -> ModelSpec:
        """The model; raises `BadInput` while it is not known."""
        if self.model is None:
            raise BadInput("the model is not known yet", "ask again with the model that was loaded")
        return self.model

    @property
    def chunk_tokens(self) -> int:
        """The prefill chunk: the dialect's, or 1 where prompts pass through the decode path."""
        return (self.dialect.chunk or 1) if self.prefill == "chunked" else 1

    @property
    def known_weights(self) -> Weights | int | None:
        """The weights as given, or the model's own; None where their size is not known."""
        if self.weights is not None:
            return self.weights
        return load_weights(self.known_model.name)

    def memory(self, context_tokens: int) -> Projection:
        """Return every term at a context, with every lane at it; the model must be known."""
        model, dialect = self.known_model, self.dialect
        prompt = context_tokens if self.prompt_tokens is None else self.prompt_tokens
        return project(
            [
                *dialect.beside_caches(
                    model,
                    self.known_weights,
                    self.machine,
                    prompt_tokens=prompt,
                    slots_per_layer=self.slots_per_layer,
                ),
                self.cache(context_tokens),
                transient_term(model, context_tokens, self.chunk_tokens, dialect),
                *side_terms(self.side, model, dialect, self.lanes, context_tokens),
            ]
        )

    def cache(self, context_tokens: int) -> Term:
        """Return the caches of all lanes; exact, because they follow from geometry and dialect.

        Without chunks, windows keep whole contexts.
        """
        is_chunked = self.prefill == "chunked"
        dialect = self.dialect if is_chunked else self.dialect.unchunked(context_tokens)
        whole = dialect.engine_context(context_tokens, self.lanes)
        size = cache_bytes(self.known_model, whole, dialect).total_bytes
        if dialect.sequences == self.lanes > 1:
            note = f"{self.lanes} sequences of {format_tokens(context_tokens)}"
            return Term(name="cache", num_bytes=size, provenance="exact", note=note)
        at = f"at {format_tokens(context_tokens)}"
        note = at if self.lanes == 1 else f"{self.lanes} lanes x {format_bytes(size)} {at}"
        return Term(name="cache", num_bytes=self.lanes * size, provenance="exact", note=note)

    def cache_bytes(self, context_tokens: int) -> int:
        """Return the bytes of the caches of all lanes."""
        return self.cache(context_tokens).num_bytes or 0

    def unchunked_kv_bytes(self, context_tokens: int) -> int:
        """Return the caches of all lanes if no window could be kept as a ring."""
        return replace(self, prefill="unchunked").cache_bytes(context_tokens)

    def largest(self) -> int | None:
        """Return the largest context that is admitted, on the ladder or between; None if none is.

        Memory grows with the context, so it is found by bisection.
        """
        low, high = 0, self.native_max_tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.broken(middle) is None else (low, middle - 1)
        return low or None

    def check(self, context_tokens: int) -> MemoryRefusal | None:
        """Return None if `context_tokens` is admitted, else the refusal with what would fit."""
        broken = self.broken(context_tokens)
        if broken is None:
            return None
        return replace(broken, legal_tokens=self.legal, offers=tuple(self._offers(context_tokens)))

    def admit(self, context_tokens: int) -> int:
        """Return `context_tokens`; raises `ContextRefused` if it is not admitted."""
        refusal = self.check(context_tokens)
        if refusal is not None:
            raise refusal.error()
        return context_tokens

    def broken(self, context_tokens: int) -> MemoryRefusal | None:
        """Return the first limit that is broken, without the counter-offers."""
        if context_tokens < 1:
            return self._refusal("positive", context_tokens)
        if context_tokens > self.native_max_tokens:
            return self._refusal("native maximum", context_tokens)
        if self.model is None:
            return self._broken_for_all(context_tokens)
        if self.prefill == "unchunked":
            needs = self.unchunked_kv_bytes(context_tokens)
            if needs > UNCHUNKED_KV_BUDGET_BYTES:
                budget = UNCHUNKED_KV_BUDGET_BYTES
                return self._refusal("unchunked KV budget", context_tokens, needs, budget)
        if self.machine is None:
            return None
        memory, budget = self.memory(context_tokens), self.machine.usable_bytes
        if memory.known_bytes <= budget:
            return None
        return self._refusal("machine memory", context_tokens, memory.known_bytes, budget, memory)

    def _broken_for_all(self, context_tokens: int) -> MemoryRefusal | None:
        """Return None if any supported model is admitted, else the refusal of the least hungry."""
        found = [other.broken(context_tokens) for other in self._supported()]
        refusals = [refusal for refusal in found if refusal is not None]
        if len(refusals) < len(found):
            return None
        return min(refusals, key=lambda refusal: refusal.needs_bytes or 0)

    def _refusal(
        self,
        rule: Rule,
        context_tokens: int,
        needs_bytes: int | None = None,
        budget_bytes: int | None = None,
        memory: Projection | None = None,
    ) -> MemoryRefusal:
        by_machine = self.machine is not None and rule == "machine memory"
        return MemoryRefusal(
            rule=rule,
            context_tokens=context_tokens,
            lanes=self.lanes,
            prefill=self.prefill,
            model=self.model.name if self.model else "every supported model",
            native_max_tokens=self.native_max_tokens,
            needs_bytes=needs_bytes,
            budget_bytes=budget_bytes,
            budget_rule=self.machine.usable_rule if self.machine and by_machine else rule,
            terms=memory.terms if memory else (),
        )

    def _offers(self, context_tokens: int) -> Iterator[Offer]:
        """Yield the nearest settings that are admitted, each of them checked by this very rule."""
        if context_tokens < 1:
            return
        wanted = min(context_tokens, self.native_max_tokens)
        smaller = [rung for rung in self.legal if rung <= wanted]
        fits = max(smaller, default=None) or self.largest()
        if fits:
            yield self._offer("smaller context", fits, fits)
        if context_tokens > wanted or self.model is None:
            return
        lanes = self._most_lanes(wanted)
        if lanes:
            yield self._on_lanes(lanes)._offer("fewer lanes", lanes, wanted)
        chunked = replace(self, prefill="chunked")
        if self.prefill == "unchunked" and chunked.broken(wanted) is None:
            yield chunked._offer("chunked prefill", "chunked", wanted)
        narrower = self._widest_chunk(wanted)
        if narrower is not None:
            yield narrower._offer("smaller prefill chunk", narrower.chunk_tokens, wanted)
        eight = self._in_8_bits(wanted)
        if eight is not None:
            yield eight._offer("8-bit KV", 8, wanted)

    def _offer(self, change: str, value: int | str, context_tokens: int) -> Offer:
        if self.model is None:
            needs = None
        elif self.machine is None and self.prefill == "unchunked":
            needs = self.unchunked_kv_bytes(context_tokens)
        elif self.machine is None:
            needs = self.cache_bytes(context_tokens)
        else:
            needs = self.memory(context_tokens).known_bytes
        return Offer(change, value, context_tokens, needs)  # type: ignore[arg-type]

    def _most_lanes(self, context_tokens: int) -> int:
        """Return the most lanes below ours that are admitted at a context; 0 if none are."""
        low, high = 0, self.lanes - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._on_lanes(middle).broken(context_tokens) is None
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _widest_chunk(self, context_tokens: int) -> ContextAdmission | None:
        """Return this setting with the widest narrower chunk that is admitted, None without one."""
        for chunk in CHUNKS_TOKENS:
            if chunk < self.chunk_tokens:
                other = replace(self, dialect=self.dialect.with_chunk(chunk))
                if other.broken(context_tokens) is None:
                    return other
        return None

    def _in_8_bits(self, context_tokens: int) -> ContextAdmission | None:
        """Return this setting with 8-bit rows if it is admitted, None if it is not."""
        if not self.dialect.is_16_bit:
            return None
        eight = replace(self, dialect=self.dialect.with_kv_bits(8))
        try:
            return eight if eight.broken(context_tokens) is None else None
        except BadInput:
            return None  # rows that do not fill whole blocks cannot be kept in 8 bits

    def _on_lanes(self, lanes: int) -> ContextAdmission:
        return replace(self, lanes=lanes, dialect=self.dialect.with_lanes(lanes))

    def _supported(self) -> list[ContextAdmission]:
        return [replace(self, model=load_model(name)) for name in model_names()]
