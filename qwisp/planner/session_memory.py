"""Memory that is left for sessions once weights and overhead are paid, by term."""

from __future__ import annotations

from qwisp.context_rule import ContextAdmission
from qwisp.errors import BadInput
from qwisp.memory.projection import Term
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes

_SESSIONS = ("cache",)


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
