"""Options that `plan`, `replay` and `sweep` share, and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import click

from qwisp.cli import output
from qwisp.context_rule import ContextAdmission
from qwisp.cost import CostModel, load_cost
from qwisp.errors import BadInput, NotCalibrated
from qwisp.memory.projection import Term
from qwisp.planner.session_memory import session_memory
from qwisp.scheduling.settings import Settings
from qwisp.sim.replay import MaxNew, parse_max_new, settings_for
from qwisp.spec.catalog import load_model
from qwisp.spec.machine import MachineSpec, load_machine
from qwisp.spec.model import ModelSpec
from qwisp.trace.read import read_trace
from qwisp.trace.request import Trace
from qwisp.units import format_bytes, parse_bytes, parse_rate, parse_tokens

_OPTIONS = (
    click.option("--model", help="Catalog name, config.json or folder."),
    click.option("--machine", help="Machine name, or `this`."),
    click.option("--memory", help="Bytes for sessions, like 12GiB or 20%."),
    click.option("--trace", help="Trace file; formats are recognised."),
    click.option("--lenient", is_flag=True, help="Skip lines that cannot be read, and count them."),
    click.option("--context", help="The engine's own session beside a list, like 32K."),
    click.option(
        "--order", default="fcfs", show_default=True, help="fcfs, first_fit, sjf or a .py."
    ),
    click.option("--budget", help="Prefill tokens a round; 0 prefills each prompt in one go."),
    click.option("--grow", help="Reply tokens a first session must hold (8192)."),
    click.option("--prefix", help="Bytes of a prefix store beside the sessions, like 8GiB."),
    click.option("--prefix-boundary", help="Tokens between captures (the trace's key step)."),
    click.option("--rate", help="Scale of the arrivals, like 0.04x."),
    click.option(
        "--max-new", default="unset", show_default=True, help="unset, N, or oracle (clairvoyant)."
    ),
)


def replay_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the function receives `ask(output_format) -> Question` instead."""

    @functools.wraps(function)
    def with_ask(*args: Any, **kwargs: Any) -> Any:
        taken = {name: kwargs.pop(name) for name in _NAMES}
        return function(*args, ask=functools.partial(Question.ask, **taken), **kwargs)

    for option in reversed(_OPTIONS):
        with_ask = option(with_ask)
    return with_ask


_NAMES = (
    "model",
    "machine",
    "memory",
    "trace",
    "lenient",
    "context",
    "order",
    "budget",
    "grow",
    "prefix",
    "prefix_boundary",
    "rate",
    "max_new",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked, read and checked. `memory_terms` explains a memory that was not named."""

    model: ModelSpec
    machine: MachineSpec
    cost: CostModel
    trace: Trace
    memory_bytes: int
    memory_terms: tuple[Term, ...]
    settings: Settings
    own_context_tokens: int | None
    rate: Fraction | None
    max_new: MaxNew

    @classmethod
    def ask(
        cls,
        output_format: str = "table",
        *,
        model: str | None,
        machine: str | None,
        memory: str | None,
        trace: str | None,
        lenient: bool,
        context: str | None,
        order: str,
        budget: str | None,
        grow: str | None,
        rate: str | None,
        max_new: str,
        prefix: str | None = None,
        prefix_boundary: str | None = None,
    ) -> Question:
        """Read everything, cheap checks first; what it says goes beside `output_format`.

        Raises `QwispError`.
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
            # Named memory stands in for the machine's, so then only the model bounds the context.
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
            step = read.prefix_step_tokens
            changes |= {"prefix_bytes": store_bytes, "prefix_step_tokens": step}
            changes["boundary_tokens"] = boundary or step
            if not any(request.prefix for request in read.requests):
                raise BadInput(
                    f"{read.name} names no prefixes, so a store would never be hit",
                    "leave out --prefix, or give a trace with block hashes (Mooncake, our JSONL)",
                )
        if read.num_skipped or read.num_failed:
            click.echo(
                f"{read.name}: {read.num_skipped:,} lines skipped, "
                f"{read.num_failed:,} failed requests left out",
                err=True,
            )
        try:
            cost = load_cost(spec.name, box.name)
            cost.require()
        except NotCalibrated:
            _say_memory(spec, box, named, output_format)
            raise
        longest = max((request.prompt_tokens for request in read.requests), default=1)
        left, terms = (named, ()) if named else session_memory(spec, box, longest)
        return cls(
            model=spec,
            machine=box,
            cost=cost,
            trace=read,
            memory_bytes=left,
            memory_terms=terms,
            settings=settings_for(cost, **changes),
            own_context_tokens=own,
            rate=scale,
            max_new=limit,
        )


def _say_memory(
    model: ModelSpec, machine: MachineSpec, named: int | None, output_format: str
) -> None:
    """Say what can be said without times: the memory for sessions, or why there is none."""
    try:
        left = format_bytes(named or session_memory(model, machine)[0])
        text = f"memory for sessions: {left} on {machine.name}"
    except BadInput as error:
        text = f"memory for sessions: none; {error.what}"
    output.note(text, output_format)
