"""What `plan`, `replay`, the lab and notebooks ask: read from text and checked, with remarks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path

from qwisp.cost import CostModel, load_cost
from qwisp.cost.offered import Offered, offered_load
from qwisp.errors import BadInput, NotCalibrated
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.projection import Term
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.settings import Settings
from qwisp.sim.replay import MaxNew, parse_max_new, replay, runnable, settings_for
from qwisp.sim.run import Run
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.trace.read import read_trace
from qwisp.trace.request import Trace
from qwisp.units import format_bytes, parse_bytes, parse_rate, parse_tokens

_SESSIONS = ("cache",)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model on a machine, its times, a trace and the bytes for sessions.

    `settings` default to those of the engine whose times were measured, `rate` to the recorded
    arrivals (in a plan: the best that can be sustained). `memory_terms` explain a memory that was
    not named; `remarks` are what reading had to say.
    """

    model: ModelSpec
    machine: MachineSpec
    cost: CostModel
    trace: Trace
    memory_bytes: int
    settings: Settings = None  # type: ignore[assignment]
    own_context_tokens: int | None = None
    rate: Fraction | None = None
    max_new: MaxNew = "unset"
    memory_terms: tuple[Term, ...] = ()
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.settings is None:
            object.__setattr__(self, "settings", settings_for(self.cost))

    @cached_property
    def size(self) -> SessionBytes:
        """The bytes of a session by its rows."""
        return SessionBytes(self.model, chunk_tokens=self.settings.chunk_tokens)

    def served(self, layout: Layout) -> Trace:
        """Return the trace without the requests that a layout can never run."""
        return runnable(self.trace, layout, self.size, self.settings, self.max_new)

    def offered(self, served: Trace) -> Offered:
        """Return the load of requests as recorded. Raises `BadTrace` where there are none."""
        return offered_load(served, self.cost, budget=self.settings.budget_tokens)

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt of the trace, which has the largest transient."""
        return max((request.prompt_tokens for request in self.trace.requests), default=1)

    def known_terms(self) -> tuple[Term, ...]:
        """Return what the model takes before any session, beside a named memory too; or nothing."""
        if not self.memory_terms:
            with suppress(BadInput):
                return session_memory(self.model, self.machine, self.longest_prompt_tokens)[1]
        return self.memory_terms

    def layout(
        self, text: str, *, own_context_tokens: int | None = None, cut: str | None = None
    ) -> Layout:
        """Return the layout of a text under this model and memory; it may be too large for it.

        `own_context_tokens` is the engine's own session beside a list, `cut` a rule of placing
        other than the layout's. Raises `BadInput`, also for a model too short for it.
        """
        layout = parse_layout(
            text,
            size=self.size,
            memory_bytes=self.memory_bytes,
            model_context_tokens=self.model.context_max_tokens,
            own_context_tokens=own_context_tokens or self.own_context_tokens,
            machine_bytes=self.machine.memory_bytes,
        )
        return replace(layout, cut=cut) if cut else layout

    def replays(self, layout: Layout) -> Callable[..., Run]:
        """Return `replay` with this question filled in: call it with a trace and `rate`."""
        return partial(
            replay,
            layout=layout,
            size=self.size,
            cost=self.cost,
            settings=self.settings,
            max_new=self.max_new,
        )


def read_question(
    *,
    model: str | None,
    machine: str | None,
    trace: str | Path | None,
    memory: str | None = None,
    lenient: bool = False,
    context: str | None = None,
    order: str = "fcfs",
    budget: str | None = None,
    grow: str | None = None,
    prefix: str | None = None,
    prefix_boundary: str | None = None,
    rate: str | None = None,
    max_new: str = "unset",
) -> Question:
    """Return the question that options spell, as people type them; cheap checks come first.

    Raises `QwispError`. `NotCalibrated` carries as `remarks` what can be said without times.
    """
    if not (model and machine and trace):
        given = {"--model": model, "--machine": machine, "--trace": trace}
        missing = " and ".join(name for name, value in given.items() if not value)
        raise BadInput(
            f"no {missing} given", "try: --model qwen3.6-35b-a3b --machine this --trace FILE"
        )
    spec, box = load_model(model), load_machine(machine)
    named = parse_bytes(memory, of_bytes=box.memory_bytes) if memory else None
    if named and named > box.memory_bytes:
        raise BadInput(
            f"--memory {memory} is {format_bytes(named)}, above the"
            f" {format_bytes(box.memory_bytes)} of {box.name}",
            "give less, or another --machine",
        )
    scale = parse_rate(rate) if rate else None
    limit = parse_max_new(max_new)
    own = parse_tokens(context) if context else None
    if own is not None:
        # Memory given by name replaces the machine's, so only the model bounds the context.
        ContextAdmission(spec, None if named else box).admit(own)
    changes: dict[str, object] = {"order": order}
    if budget is not None:
        changes["budget_tokens"] = 0 if budget.strip() == "0" else parse_tokens(budget)
    if grow is not None:
        changes["grow_tokens"] = parse_tokens(grow)
    store_bytes = parse_bytes(prefix) if prefix else 0
    boundary = parse_tokens(prefix_boundary) if prefix_boundary else None
    if boundary and not store_bytes:
        raise BadInput("a prefix boundary without a store", "give --prefix 8GiB as well")
    read = read_trace(trace, lenient=lenient)
    if store_bytes:
        changes |= _store(read, store_bytes, boundary)
    remarks = []
    if read.num_skipped or read.num_failed:
        remarks.append(
            f"{read.name}: {read.num_skipped:,} lines skipped, "
            f"{read.num_failed:,} failed requests left out"
        )
    try:
        cost = load_cost(spec.name, box.name).require()
    except NotCalibrated as error:
        remarks.append(_memory_remark(spec, box, named))
        raise NotCalibrated(error.what, error.todo, tuple(remarks)) from None
    asked = Question(
        model=spec,
        machine=box,
        cost=cost,
        trace=read,
        memory_bytes=named or 0,
        settings=settings_for(cost, **changes),
        own_context_tokens=own,
        rate=scale,
        max_new=limit,
        remarks=tuple(remarks),
    )
    if named:
        return asked
    left, terms = session_memory(spec, box, asked.longest_prompt_tokens)
    return replace(asked, memory_bytes=left, memory_terms=terms)


def session_memory(
    model: ModelSpec, machine: MachineSpec, prompt_tokens: int = 4096
) -> tuple[int, tuple[Term, ...]]:
    """Return the bytes sessions may take by default, and the terms that come before them.

    70 % of the machine's memory (or its known limit) less weights, overhead and the transient of
    prefilling a prompt of `prompt_tokens`, the longest to come. Raises `BadInput` when a term is
    unmeasured or nothing is left.
    """
    longest = min(prompt_tokens, model.context_max_tokens or prompt_tokens)
    projection = ContextAdmission(model, machine).memory(longest)
    before = tuple(t for t in projection.terms if t.is_counted and t.name not in _SESSIONS)
    unknown = [term.name for term in before if term.num_bytes is None]
    if unknown:
        raise BadInput(
            f"{', '.join(unknown)} of {model.name} on {machine.name} not known",
            "name the memory for sessions with --memory, like --memory 12GiB",
        )
    left = machine.usable_bytes - sum(term.num_bytes or 0 for term in before)
    if left <= 0:
        raise BadInput(
            f"{machine.name} may use {format_bytes(machine.usable_bytes)}, but {model.name} takes "
            f"{format_bytes(machine.usable_bytes - left)} before any session",
            "use a smaller model or a larger machine, or say --memory to plan all the same",
        )
    return left, before


def _store(trace: Trace, num_bytes: int, boundary_tokens: int | None) -> dict[str, object]:
    """Return the settings of a prefix store. Raises `BadInput` for a trace that never hits it."""
    if not any(request.prefix for request in trace.requests):
        raise BadInput(
            f"{trace.name} names no prefixes, so a store would never be hit",
            "leave out --prefix, or give a trace with block hashes (Mooncake, our JSONL)",
        )
    step = trace.prefix_step_tokens
    return {
        "prefix_bytes": num_bytes,
        "prefix_step_tokens": step,
        "boundary_tokens": boundary_tokens or step,
    }


def _memory_remark(model: ModelSpec, machine: MachineSpec, named: int | None) -> str:
    """Return what can be said without times: the memory for sessions, or why there is none."""
    try:
        left = format_bytes(named or session_memory(model, machine)[0])
    except BadInput as error:
        return f"memory for sessions: none; {error.what}"
    return f"memory for sessions: {left} on {machine.name}"
