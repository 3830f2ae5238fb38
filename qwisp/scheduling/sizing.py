"""How long a reply may get and how many rows it asks for, by kind of layout.

The scheduler knows `max_new`, never the actual length. Each function returns a `Size` or a
`Refusal` with the numbers and the nearest thing that would fit.
"""

from __future__ import annotations

from typing import NamedTuple

from qwisp.scheduling.contract import Ask, Refusal, make
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.settings import Settings

MIN_GEN_CAP_TOKENS = 1024


class Size(NamedTuple):
    """`cap_tokens` bounds the reply; `want_rows` is what a place must have at admission."""

    cap_tokens: int
    want_rows: int


def size_request(ask: Ask, space: RowSpace, settings: Settings) -> Size | Refusal:
    """Return the size of a request in a space, or why it is refused at once."""
    return _BY_KIND[space.layout.kind](ask, space, settings)


def _sized(ask: Ask, space: RowSpace, settings: Settings) -> Size | Refusal:
    """The largest session must hold the whole reply; the first one only its next growth."""
    step, largest = settings.step_tokens, space.largest_context
    room = largest - ask.prompt_tokens - step
    cap = min(settings.gen_cap_tokens, room) if ask.max_new is None else ask.max_new
    if room < 1 or cap > room:
        return _refusal(ask, "no free session large enough", max(cap, 1) + step, largest, room)
    first = min(settings.grow_tokens, cap)
    return make(Size, (cap, ask.prompt_tokens + first + step + space.margin_rows))


def _whole_window(ask: Ask, space: RowSpace, settings: Settings) -> Size | Refusal:
    """First free session, no growth: a reply that does not fit fails at once (ContextFull)."""
    step, context = settings.step_tokens, space.largest_context
    room = context - ask.prompt_tokens - step
    cap = min(settings.gen_cap_tokens, room) if ask.max_new is None else ask.max_new
    if room < 1 or cap > room:
        return _refusal(ask, "ContextFull", max(cap, 1) + step, context, room)
    return Size(cap, ask.prompt_tokens + cap + step)


def _fixed_arena(ask: Ask, space: RowSpace, settings: Settings) -> Size | Refusal:
    """What is eligible is what was allocated: a long reply is cut, a long prompt refused."""
    step, rows = settings.step_tokens, space.largest_context
    room = rows - ask.prompt_tokens - step
    if room < 1:
        return _refusal(ask, "no free session large enough", 1 + step, rows, room)
    asked = room if ask.max_new is None else ask.max_new
    cap = min(asked, settings.gen_cap_tokens, room)
    return Size(cap, ask.prompt_tokens + cap + step)


def generation_tokens(
    prompt_tokens: int, max_new: int | None, context_tokens: int, gen_cap_tokens: int
) -> int | None:
    """Return the tokens a lane is sized to generate, or None for an oversized prompt.

    Oversized is decided before the floor of one token can hide it.

    >>> generation_tokens(35_000, None, 262_144, 16_384)
    16384
    >>> generation_tokens(40_000, 10, 32_768, 16_384) is None
    True
    """
    headroom = max(0, context_tokens - prompt_tokens - 1)
    if headroom == 0:
        return None
    ceiling = headroom if max_new is None else min(max_new, headroom)
    return max(1, min(ceiling, gen_cap_tokens, context_tokens - prompt_tokens))


def _per_request(ask: Ask, space: RowSpace, settings: Settings) -> Size | Refusal:
    """A run sized from prompt and budget; generation is clamped so that it fits alone."""
    step, context = settings.step_tokens, space.layout.context_tokens
    gen_cap = max(MIN_GEN_CAP_TOKENS, settings.gen_cap_tokens)
    gen = generation_tokens(ask.prompt_tokens, ask.max_new, context, gen_cap)
    if gen is None:
        return _refusal(ask, "oversized", 1 + step, context, context - ask.prompt_tokens - 1)
    most = space.max_rows - ask.prompt_tokens - step
    if most < 1:
        return _refusal(ask, "byte budget", 1 + step, space.max_rows, most)
    gen = min(gen, most)
    return Size(gen, ask.prompt_tokens + step + gen)


def _refusal(ask: Ask, binding: str, beyond_prompt: int, limit: int, room: int) -> Refusal:
    needed = ask.prompt_tokens + beyond_prompt
    offer = (
        f"a reply of at most {room:,} tokens would fit"
        if room > 0
        else f"a prompt of at most {max(0, ask.prompt_tokens + room - 1):,} tokens would fit"
    )
    return Refusal(
        ask.id,
        f"{binding}: {needed:,} tokens needed, {limit:,} is the most a place here holds",
        binding,
        needed,
        limit,
        offer,
    )


_BY_KIND = {
    "sized": _sized,
    "whole_window": _whole_window,
    "fixed_arena": _fixed_arena,
    "per_request": _per_request,
}
