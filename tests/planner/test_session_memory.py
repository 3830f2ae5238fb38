"""Memory for sessions: what the machine may use, less everything that comes before a session."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.planner.session_memory import session_memory
from qwisp.spec.catalog import load_model
from qwisp.spec.machine import load_machine

MODEL, M1 = load_model("qwen3.6-35b-a3b"), load_machine("m1-max-64gb")


@pytest.mark.parametrize("prompt_tokens", [1, 4096, 43_529, 10**9])
def test_the_terms_and_what_is_left_are_what_the_machine_may_use(prompt_tokens: int) -> None:
    left, terms = session_memory(MODEL, M1, prompt_tokens)
    assert left + sum(term.num_bytes for term in terms) == M1.usable_bytes
    assert {term.name for term in terms} == {"weights", "runtime overhead", "prefill transient"}


def test_a_longer_prompt_to_come_leaves_less_by_its_transient_alone() -> None:
    (short, before), (long, after) = (session_memory(MODEL, M1, n) for n in (4096, 65_536))
    grown = {a.name: b.num_bytes - a.num_bytes for a, b in zip(before, after, strict=True)}
    assert {name for name, more in grown.items() if more} == {"prefill transient"}
    assert short - long == grown["prefill transient"] > 0


def test_a_machine_that_cannot_hold_the_model_has_nothing_left() -> None:
    with pytest.raises(BadInput, match=r"may use 11\.20 GiB, but qwen3\.6-35b-a3b takes"):
        session_memory(MODEL, load_machine("m4-16gb"))
