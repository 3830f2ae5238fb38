"""Long and short streams in changing company: what shows that a stream's bits are its own."""

from __future__ import annotations

from typing import NamedTuple

from qwisp.scheduling.chunking import granted_chunks
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.testing.exercised import WANTED_BLOCKS
from qwisp.testing.script import ScriptedRequest

FIRST_ID = 1000
MOST = 8  # streams at once: a fault of widths shows when the sixth, seventh or eighth comes
_BEFORE = 3  # tokens before a boundary at which a prompt ends, so that decoding crosses it
_AFTER = 8  # tokens that all of them decode together
_SHORT = (1, 7, 33, 60)


class Company(NamedTuple):
    """Requests of several runs. `wanted_tokens` is the session that would hold the longest."""

    runs: tuple[tuple[ScriptedRequest, ...], ...]
    wanted_tokens: int


def company(
    layout: Layout, settings: Settings, block_tokens: int, window_tokens: int | None = None
) -> Company:
    """Return runs in which the same few streams meet others, elsewhere and in another order.

    Their prompts end just before 1, 2 and 5 blocks, at the end of one, and before the end of the
    window, as far as the largest session holds them; the others are short. All arrive at once and
    reply until the last of them was prefilled, so that they decode together.
    """
    prompts = [blocks * block_tokens - _BEFORE for blocks in WANTED_BLOCKS]
    prompts.append(block_tokens + 1)  # its prefill ends with the block
    if window_tokens:
        prompts += [max(1, window_tokens - _BEFORE), 2 * window_tokens + 1]
    prompts += _SHORT
    prompts = sorted(prompts[:MOST], reverse=True)
    largest = layout.context_tokens - settings.step_tokens
    wanted = prompts[0] + _reply(prompts, settings) + settings.step_tokens
    while len(prompts) > 1 and prompts[0] + _reply(prompts, settings) > largest:
        del prompts[0]
    reply = max(1, min(_reply(prompts, settings), largest - prompts[0]))
    streams = [
        ScriptedRequest(FIRST_ID + n, prompt, reply, reply) for n, prompt in enumerate(prompts)
    ]
    return Company(tuple(_runs(streams)), wanted)


def _reply(prompts: list[int], settings: Settings) -> int:
    """Return tokens that last until the last prompt was prefilled, and a few more."""
    chunk, rounds = settings.chunk_tokens, 0
    a_round = granted_chunks(settings.budget_tokens, len(prompts), chunk)
    for prompt in prompts:
        rounds += -(-prompt // (a_round * chunk)) if settings.budget_tokens else 1
    return (rounds + _AFTER) * settings.step_tokens


def _runs(streams: list[ScriptedRequest]) -> list[tuple[ScriptedRequest, ...]]:
    """Return runs of 8, 7, 6 and 2 in other orders; one stream among long ones, then short ones."""
    backwards = streams[::-1]
    mixed = streams[1::2] + streams[::2]
    subject = len(streams) // 2 - 1
    longer, shorter = streams[:subject], streams[subject + 1 :]
    runs = [
        streams,
        backwards[: MOST - 1],
        (streams[:2] + backwards)[: MOST - 2],
        mixed,
        [streams[-1], streams[0]],
        [*longer, streams[subject]],
        [streams[subject], *shorter],
    ]
    return [tuple(dict.fromkeys(run)) for run in runs if run]
