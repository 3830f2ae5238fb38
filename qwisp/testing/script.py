"""Clients known beforehand: who asks in which round and goes away; those that a check serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qwisp.scheduling.chunking import granted_chunks, num_rounds
from qwisp.scheduling.contract import Ask, Fact, Round
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.testing.exercised import WANTED_BLOCKS

IDLE = 10_000  # a round by which everything before is over
FIRST_ID = 1000
MOST = 8  # streams at once: a fault of widths shows when the sixth, seventh or eighth comes
_BEFORE = 3  # tokens before a boundary at which a prompt ends, so that decoding crosses it
_AFTER = 8  # tokens that all of them decode together
_SHORT = (1, 7, 33, 60)


class ScriptedRequest(NamedTuple):
    """A request that arrives in round `arrives` and is cancelled in round `cancelled`, if ever.

    `output_tokens` is where its reply ends by itself: only an engine may know it. `prefix` holds
    the keys of its prompt; equal keys stand for equal tokens.
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    max_new: int | None = None
    arrives: int = 0
    cancelled: int | None = None
    prefix: tuple[int, ...] = ()

    @property
    def ask(self) -> Ask:
        """What the scheduler is told."""
        return Ask(self.id, self.prompt_tokens, self.max_new, self.prefix)


class Script:
    """Facts of scripted requests, by round index. Idle time is no rounds: it is left out.

    >>> script = Script([ScriptedRequest(7, 10, 5), ScriptedRequest(8, 10, 5, arrives=900)])
    >>> [(fact.round, fact.ask.id) for fact in script.facts(0)], script.wait()
    ([(0, 7)], True)
    >>> [(fact.round, fact.ask.id) for fact in script.facts(4)]
    [(4, 8)]
    """

    def __init__(self, requests: Iterable[ScriptedRequest]) -> None:
        facts: list[Fact] = []
        for request in requests:
            facts.append(Fact(request.arrives, ask=request.ask))
            if request.cancelled is not None:
                facts.append(Fact(request.cancelled, cancel=request.id))
        self._facts = sorted(facts, key=lambda fact: fact.round)
        self._next = 0
        self._idle = 0  # rounds left out so far
        self._waited = False

    def facts(self, round_index: int) -> list[Fact]:
        """Return what is known up to a round, oldest first, each once."""
        if self._waited:
            self._idle += max(0, self._facts[self._next].round - self._idle - round_index)
            self._waited = False
        found = []
        while self._next < len(self._facts):
            fact = self._facts[self._next]
            if fact.round - self._idle > round_index:
                break
            found.append(fact._replace(round=fact.round - self._idle))
            self._next += 1
        return found

    def wait(self) -> bool:
        """Let the next fact come at once; False when there is none."""
        self._waited = self._next < len(self._facts)
        return self._waited

    def rounds_free(self, round: Round) -> int:
        """Return the rounds before a cancel, or an arrival that could change the plan."""
        for fact in self._facts[self._next :]:
            if fact.cancel is not None or round.wakes:
                return max(1, min(round.repeat, fact.round - self._idle - round.index))
        return round.repeat


def default_requests(layout: Layout, settings: Settings) -> list[ScriptedRequest]:
    """Return requests that meet every operation, with prompts as short as that allows."""
    sizes = sorted(set(layout.contexts or (layout.context_tokens,)))
    step, grow = settings.step_tokens, settings.grow_tokens
    small, largest = sizes[0], sizes[-1]
    crossing = max(1, small - grow - step)
    beyond = max(1, largest - crossing - step)
    long = min(2 * grow + step + 8, beyond)
    holder = 1 if len(sizes) == 1 else sizes[-2] - min(grow, long) - step + 1
    holder = min(max(1, holder), max(1, largest - long - step))
    a_round = granted_chunks(settings.budget_tokens, 0, settings.chunk_tokens)
    several = max(1, min(4 * a_round * settings.chunk_tokens + 3, largest - 6 - step))
    count = layout.contexts.count(small) + 1
    asks = [ScriptedRequest(0, holder, long, long)]
    asks += [ScriptedRequest(i, crossing, long, long, arrives=i) for i in range(1, count + 1)]
    number = count + 1
    return [
        *asks,
        ScriptedRequest(number, 1, 5, 6, arrives=2),
        ScriptedRequest(number + 1, several, 4, 6, arrives=2),
        ScriptedRequest(number + 2, crossing, long, long, arrives=4, cancelled=7),
        ScriptedRequest(number + 3, largest + 1, 4, 6, arrives=5),
        ScriptedRequest(number + 4, crossing, long, long, arrives=IDLE),
        ScriptedRequest(number + 5, several, 5, 6, arrives=IDLE + 3),
        ScriptedRequest(number + 6, 1, 9, 9, arrives=IDLE + 4, cancelled=IDLE + 7),
    ]


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
    budget, chunk = settings.budget_tokens, settings.chunk_tokens
    rounds = sum(num_rounds(-(-prompt // chunk), budget, chunk, len(prompts)) for prompt in prompts)
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
