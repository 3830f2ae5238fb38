"""One token either side of what is taken, for every kind of layout; and what a refusal offers."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Ask, Refusal
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.sizing import Size, generation_tokens, size_request
from qwisp.testing import RowBytes, sessions


def size(layout: Layout | str, prompt: int, max_new: int | None, **changes: int) -> Size | Refusal:
    """In a model of 64 tokens, with memory for 64 rows, unless told otherwise."""
    given = {"memory_bytes": 64, "model_context_tokens": 64}
    given |= {name: changes.pop(name) for name in given if name in changes}
    if isinstance(layout, str):
        layout = parse_layout(layout, size=RowBytes(), **given)
    return size_request(Ask(1, prompt, max_new), RowSpace(layout, RowBytes()), Settings(**changes))


MARGIN = sessions(64, 32, margin_rows=32)


@pytest.mark.parametrize(
    ("prompt", "max_new", "changes", "taken"),
    [
        (10, 53, {}, (53, 96)),  # 10 + 53 + 1 tokens, and 32 rows of margin
        (10, 54, {}, None),
        (62, None, {}, (1, 96)),
        (62, 1, {}, (1, 96)),
        (62, 2, {}, None),
        (63, None, {}, None),
        (10, None, {}, (53, 96)),
        (10, None, {"gen_cap_tokens": 52}, (52, 95)),
        (10, None, {"gen_cap_tokens": 54}, (53, 96)),
        (10, 30, {"gen_cap_tokens": 20}, (30, 73)),  # the cap is for unset replies
        (10, 30, {"grow_tokens": 4}, (30, 47)),  # 10 + 4 + 1 + 32
        (10, 4, {"grow_tokens": 5}, (4, 47)),
        (10, 49, {"step_tokens": 5}, (49, 96)),
        (10, 50, {"step_tokens": 5}, None),
        (58, None, {"step_tokens": 5}, (1, 96)),
        (59, None, {"step_tokens": 5}, None),
    ],
)
def test_a_sized_list(prompt: int, max_new: int | None, changes: dict, taken) -> None:
    found = size(MARGIN, prompt, max_new, **changes)
    assert (None if isinstance(found, Refusal) else found) == taken


@pytest.mark.parametrize(
    ("prompt", "max_new", "changes", "taken"),
    [
        (10, 53, {}, (53, 64)),
        (10, 54, {}, None),  # it does not wait and is not cut
        (10, None, {}, (53, 64)),
        (10, None, {"gen_cap_tokens": 20}, (20, 31)),
        (10, 30, {"gen_cap_tokens": 20}, (30, 41)),
        (62, None, {}, (1, 64)),
        (63, None, {}, None),
        (58, 1, {"step_tokens": 5}, (1, 64)),
        (59, 1, {"step_tokens": 5}, None),
    ],
)
def test_a_whole_window(prompt: int, max_new: int | None, changes: dict, taken) -> None:
    found = size("whole_window:1", prompt, max_new, **changes)
    assert (None if isinstance(found, Refusal) else found) == taken
    if isinstance(found, Refusal):
        assert found.binding == "ContextFull"


@pytest.mark.parametrize(
    ("prompt", "max_new", "changes", "taken"),
    [
        (10, 21, {}, (21, 32)),
        (10, 22, {}, (21, 32)),  # cut to the lane
        (10, 20, {}, (20, 31)),
        (10, None, {}, (21, 32)),
        (10, None, {"gen_cap_tokens": 20}, (20, 31)),
        (10, 22, {"gen_cap_tokens": 20}, (20, 31)),
        (30, None, {}, (1, 32)),
        (31, None, {}, None),
        (26, 9, {"step_tokens": 5}, (1, 32)),
        (27, 9, {"step_tokens": 5}, None),
    ],
)
def test_a_fixed_arena(prompt: int, max_new: int | None, changes: dict, taken) -> None:
    found = size("fixed_arena:32", prompt, max_new, **changes)
    assert (None if isinstance(found, Refusal) else found) == taken


@pytest.mark.parametrize(
    ("prompt", "max_new", "changes", "taken"),
    [
        (10, 20, {}, (20, 31)),
        (10, None, {}, (53, 64)),
        (10, 99, {}, (53, 64)),
        (62, 99, {}, (1, 64)),  # the headroom is one token
        (63, 99, {}, None),
        (10, None, {"memory_bytes": 40}, (29, 40)),  # clamped so that it fits alone
        (38, 5, {"memory_bytes": 40}, (1, 40)),
        (39, 5, {"memory_bytes": 40}, None),
        (10, None, {"step_tokens": 5, "memory_bytes": 65}, (50, 65)),
        (10, None, {"step_tokens": 5, "memory_bytes": 99}, (50, 65)),  # context + 1 rows at most
        (10, None, {"step_tokens": 5, "memory_bytes": 63}, (48, 63)),
    ],
)
def test_a_run_per_request(prompt: int, max_new: int | None, changes: dict, taken) -> None:
    found = size("per_request", prompt, max_new, **changes)
    assert (None if isinstance(found, Refusal) else found) == taken


@pytest.mark.parametrize(
    ("asked", "gen_cap", "tokens"),
    [(None, 1023, 1024), (None, 1024, 1024), (None, 1025, 1025), (1024, 7, 1024), (1025, 7, 1024)],
)
def test_the_generation_cap_is_never_below_1024(asked, gen_cap: int, tokens: int) -> None:
    found = size(
        "per_request",
        10,
        asked,
        gen_cap_tokens=gen_cap,
        memory_bytes=9000,
        model_context_tokens=9000,
    )
    assert found == (tokens, 11 + tokens)


def test_generation_tokens_at_each_bound() -> None:
    assert [generation_tokens(p, None, 100, 50) for p in (48, 49, 50, 98, 99, 100)] == [
        50, 50, 49, 1, None, None,
    ]  # fmt: skip
    assert [generation_tokens(50, most, 100, 40) for most in (1, 39, 40, 41, 99)] == [
        1, 39, 40, 40, 40,
    ]  # fmt: skip
    assert generation_tokens(60, 99, 100, 40) == 39


@pytest.mark.parametrize(
    ("layout", "prompt", "max_new", "binding", "needed", "limit", "offer"),
    [
        (MARGIN, 10, 54, "no free session large enough", 65, 64, "a reply of at most 53 tokens"),
        (MARGIN, 63, None, "no free session large enough", 65, 64, "a prompt of at most 62 tokens"),
        (MARGIN, 99, 9, "no free session large enough", 109, 64, "a prompt of at most 62 tokens"),
        ("whole_window:1", 61, 3, "ContextFull", 65, 64, "a reply of at most 2 tokens"),
        ("whole_window:1", 64, None, "ContextFull", 66, 64, "a prompt of at most 62 tokens"),
        ("fixed_arena:32", 31, 9, "no free session large enough", 33, 32, "at most 30 tokens"),
        ("per_request", 63, None, "oversized", 65, 64, "a prompt of at most 62 tokens"),
        ("per_request", 80, 3, "oversized", 82, 64, "a prompt of at most 62 tokens"),
        ("per_request:40", 39, 3, "byte budget", 41, 40, "a prompt of at most 38 tokens"),
        ("per_request:40", 60, 3, "byte budget", 62, 40, "a prompt of at most 38 tokens"),
    ],
)
def test_a_refusal_says_what_was_needed_what_there_is_and_what_would_do(
    layout, prompt: int, max_new, binding: str, needed: int, limit: int, offer: str
) -> None:
    found = size(layout, prompt, max_new)
    assert isinstance(found, Refusal)
    assert (found.binding, found.needed, found.limit) == (binding, needed, limit)
    assert found.reason == (
        f"{binding}: {needed} tokens needed, {limit} is the most a place here holds"
    )
    assert offer in found.counter_offer
    most = int(found.counter_offer.split("at most ")[1].split()[0])
    if "reply" in found.counter_offer:
        assert isinstance(size(layout, prompt, most), Size)
        assert isinstance(size(layout, prompt, most + 1), Refusal)
    else:
        assert isinstance(size(layout, most, None), Size)
        assert isinstance(size(layout, most + 1, None), Refusal)


def test_a_prompt_that_no_shorter_one_could_replace_is_offered_none() -> None:
    found = size(sessions(1), 1, None)
    assert found.counter_offer == "a prompt of at most 0 tokens would fit"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("step_tokens", 1),
        ("grow_tokens", 1),
        ("gen_cap_tokens", 1),
        ("chunk_tokens", 1),
        ("prefix_step_tokens", 1),
        ("boundary_tokens", 1),
        ("min_shared_tokens", 1),
        ("prefix_bytes", 0),
        ("budget_tokens", 0),
    ],
)
def test_settings_take_their_least_value_and_none_below(name: str, least: int) -> None:
    assert getattr(Settings(**{name: least}), name) == least
    with pytest.raises(BadInput, match=str(least - 1)):
        Settings(**{name: least - 1})


def test_there_are_two_chunk_rules() -> None:
    assert Settings(chunk_rule="ceil").chunk_rule == "ceil"
    with pytest.raises(BadInput, match="'whole' is unknown"):
        Settings(chunk_rule="whole")


def test_as_many_sessions_as_fit_and_no_more() -> None:
    def contexts(text: str, memory: int, **given: int | None) -> tuple[int, ...]:
        layout = parse_layout(
            text, size=RowBytes(), memory_bytes=memory, model_context_tokens=64, **given
        )
        return layout.contexts

    assert [len(contexts("whole_window", memory)) for memory in (1, 127, 128, 191, 192)] == [
        1, 1, 2, 2, 3,
    ]  # fmt: skip
    assert len(contexts("whole_window", 10**9)) == 4096
    assert contexts("fixed_arena:32", 95) == (32, 32)
    assert contexts("fixed_arena:99", 128) == (64, 64)
    assert len(contexts("whole_window:4096", 1)) == 4096
    with pytest.raises(BadInput, match="4097 sessions asked"):
        contexts("whole_window:4097", 1)
    assert contexts("64,32", 1) == (64, 64, 32)
    assert contexts("32", 1, own_context_tokens=16) == (16, 32)
    assert contexts("whole_window:1", 1, own_context_tokens=63) == (63,)
    assert len(contexts("1x4095", 1)) == 4096
    with pytest.raises(BadInput, match="pass 4095"):
        contexts("1x4096", 1)
    with pytest.raises(BadInput, match="session of 65 tokens is above the model's 64"):
        contexts("65", 1)
