"""How memory is cut, as people write it; and what is refused before anything is allocated."""

from __future__ import annotations

from random import Random

import pytest

from qwisp.errors import BadInput, QwispError
from qwisp.scheduling.layout import MAX_ROWS, MAX_SESSIONS, Layout, parse_layout, parse_sessions
from qwisp.scheduling.row_space import RowSpace
from qwisp.testing import RowBytes
from qwisp.units import GIB


def layout(text: str, **changes: int | None) -> Layout:
    given = {"memory_bytes": 10_000, "model_context_tokens": 262_144} | changes
    return parse_layout(text, size=RowBytes(), **given)


@pytest.mark.parametrize(
    ("text", "contexts"),
    [
        ("4096", (4096,)),
        ("4096x3", (4096,) * 3),
        (" 64k , 16K x 2,1 X1 ", (65536, 16384, 16384, 1)),
        ("0004096", (4096,)),
        (f"1x{MAX_SESSIONS}", (1,) * MAX_SESSIONS),
    ],
)
def test_a_list_is_read_as_written(text: str, contexts: tuple[int, ...]) -> None:
    assert parse_sessions(text) == contexts


@pytest.mark.parametrize(
    ("text", "item", "column", "why"),
    [
        ("", 1, 1, "empty"),
        ("4096,", 2, 6, "empty"),
        ("4096,,16384", 2, 6, "empty"),
        ("4096, ,1", 2, 6, "empty"),
        ("0", 1, 1, "zero"),
        ("4096,0k", 2, 6, "zero"),
        ("4096x0", 1, 1, "zero"),
        ("-4096", 1, 1, "not a session"),
        ("4096,16384x-2", 2, 6, "not a session"),
        ("4096;16384", 1, 1, "not a session"),
        ("4k6", 1, 1, "not a session"),
        ("4096x", 1, 1, "not a session"),
        ("x4", 1, 1, "not a session"),
        ("4.5k", 1, 1, "not a session"),
        ("1e6", 1, 1, "not a session"),
        ("٤٠٩٦", 1, 1, "not a session"),
        ("4096x2x2", 1, 1, "not a session"),
        (f"1,1x{MAX_SESSIONS}", 2, 3, f"pass {MAX_SESSIONS}"),
        (f"1x{MAX_SESSIONS},1", 2, 8, f"pass {MAX_SESSIONS}"),
        ("1x9999999999999999999", 1, 1, f"pass {MAX_SESSIONS}"),
        ("9999999999999999999", 1, 1, f"{MAX_ROWS:,} rows"),
        ("9999999999999999999k", 1, 1, f"{MAX_ROWS:,} rows"),
        (f"{MAX_ROWS // 2},{MAX_ROWS // 2}", 2, 14, f"{MAX_ROWS:,} rows"),
        ("99999999999999999999", 1, 1, "not a session"),
    ],
)
def test_a_bad_item_is_named_by_number_and_column(
    text: str, item: int, column: int, why: str
) -> None:
    with pytest.raises(BadInput, match=rf"item {item} .*\(column {column}\)") as caught:
        parse_sessions(text)
    assert why in caught.value.what
    assert caught.value.todo


def test_a_list_is_added_to_the_engines_own_session() -> None:
    space = RowSpace(layout("16384,4096x6"), RowBytes())
    assert [len(run) for run in space.free] == [32800, 16416, *[4128] * 6]
    assert layout("16384", own_context_tokens=65536).contexts == (65536, 16384)
    assert layout("2048", model_context_tokens=8192).contexts == (8192, 2048)


def test_the_published_list_makes_sixteen_streams() -> None:
    assert layout("65536,32768x3,16384x11").lanes == 16


def test_an_unset_option_and_its_kin_take_what_fits() -> None:
    assert layout("whole_window", memory_bytes=3 * 262_144).contexts == (262_144,) * 3
    assert layout("whole_window", memory_bytes=1).contexts == (262_144,), "one, if infeasible"
    assert layout("whole_window:2").contexts == (262_144,) * 2
    assert layout("fixed_arena:4k").contexts == (4096,) * 2
    assert layout("fixed_arena:4k", own_context_tokens=2048).contexts == (2048,) * 4
    assert layout("per_request").budget_bytes == 10_000
    assert layout("per_request:50%").budget_bytes == 5_000
    assert layout("per_request:2kB").lanes == 8
    assert layout("Per_Request : 2kB", lanes=3).lanes == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "whole_windows",
        "whole_window:0",
        "whole_window:-1",
        "whole_window:x",
        "whole_window:5000",
        "whole_window:9999999999",
        "whole_window:²",
        "fixed_arena",
        "fixed_arena:0",
        "fixed_arena:4kk",
        "per_request:0",
        "per_request:lots",
        "262145",
        "smallest",
        "-1",
    ],
)
def test_other_layouts_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        layout(text)
    assert caught.value.todo


def test_a_context_above_the_models_is_refused() -> None:
    with pytest.raises(BadInput, match="above the model's 8,192"):
        layout("whole_window", model_context_tokens=8192, own_context_tokens=8193)


def test_bytes_of_a_layout_are_those_of_its_sessions() -> None:
    size = RowBytes(2, 100)
    lists = layout("16384,4096x6")
    assert lists.num_bytes(size) == 2 * (32800 + 16416 + 6 * 4128) + 8 * 100
    free = layout("per_request:1001")
    assert free.num_bytes(size) == 8 * 100 + 2 * 100, "8 lanes first, then whole rows of the rest"


def test_fifty_thousand_random_lists_give_a_layout_or_a_reason() -> None:
    rng = Random("lists")
    letters = "0123456789kKxX,, \t-+.:;%eE_²٤\x00\n"
    kinds = ["whole_window", "fixed_arena", "per_request", "65536,32768x3", "4k x 2", ""]
    good, errors = 0, []
    for number in range(50_000):
        text = "".join(rng.choices(letters, k=rng.randint(0, 12)))
        if number % 3 == 0:
            kind = rng.choice(kinds)
            at = rng.randint(0, len(kind))
            text = kind[:at] + rng.choice(["", ":", ",", text]) + kind[at + rng.randint(0, 1) :]
        try:
            found = layout(text)
        except QwispError as error:
            errors.append(error)
            continue
        good += 1
        assert found.lanes >= 1
        assert len(found.contexts) <= MAX_SESSIONS
        assert all(0 < context <= 262_144 for context in found.contexts)
        if found.kind == "sized":
            assert found.contexts[1:] == parse_sessions(text, max_sessions=MAX_SESSIONS - 1)
    assert good > 1_000
    assert all(error.what and error.todo for error in errors)


def test_a_budget_per_request_defaults_to_the_machine_s_size_within_the_memory() -> None:
    def budget(machine_gib: int, memory_gib: int = 100) -> int:
        found = parse_layout(
            "per_request",
            size=RowBytes(),
            memory_bytes=memory_gib * GIB,
            model_context_tokens=4096,
            machine_bytes=machine_gib * GIB,
        )
        return found.budget_bytes // GIB

    assert [budget(47), budget(48), budget(256)] == [4, 8, 8]
    assert budget(256, memory_gib=3) == 3
