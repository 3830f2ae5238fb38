"""Seeded request traces: lengths, arrivals, fan-outs with a shared prefix, growing conversations.

`python -m qwisp.trace.synthetic FILE` writes the agent trace that is bundled with qwisp.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qwisp.trace.prefix_key import segment_keys
from qwisp.trace.request import PREFIX_STEP_TOKENS, Request, Trace

_NS_PER_MS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Token counts around a `median`, between `low` and `high`.

    `spread` is the sigma of a lognormal, or one over the root of a gamma's shape: about the
    relative spread in both. `high` cuts, it does not redraw, so it shows up as a small peak.
    """

    median: int
    spread: float
    low: int
    high: int
    kind: Literal["lognormal", "gamma"] = "lognormal"

    def draw(self, rng: np.random.Generator) -> int:
        """Return one length in tokens."""
        if self.kind == "lognormal":
            factor = rng.lognormal(0.0, self.spread)
        else:
            shape = self.spread**-2
            factor = rng.gamma(shape) / max(shape - 1 / 3, shape / 3)  # close to its median
        return int(min(max(round(self.median * factor), self.low), self.high))


def gaps_s(
    num: int, mean_s: float, rng: np.random.Generator, *, burstiness: float = 1.0
) -> np.ndarray:
    """Return `num` gamma distributed gaps in seconds; `burstiness` 1 is Poisson, above is burstier.

    Shape [num].
    """
    shape = 1.0 / burstiness
    return rng.gamma(shape, mean_s / shape, size=num)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the generator makes. By default coding agents that keep a 64 GB Mac 80 % busy.

    A task is a fan-out (sub-agents that start together on one shared prefix) with the probability
    `fan_out_share`, else a conversation whose every turn sends all earlier turns again.
    `long_share` of the replies are drawn from `long_reply` (plans and whole files; longer than the
    8,192 tokens that a scheduler grants at first), the others from `reply`.
    """

    num_tasks: int = 80
    mean_gap_s: float = 420.0
    burstiness: float = 0.5
    fan_out_share: float = 0.6
    shared_prefix: Lengths = Lengths(median=6500, spread=0.2, low=4096, high=20480)
    fan_out: Lengths = Lengths(median=5, spread=0.35, low=3, high=8)
    own_part: Lengths = Lengths(median=600, spread=0.8, low=64, high=6000)
    first_message: Lengths = Lengths(median=3500, spread=0.6, low=200, high=16000)
    message: Lengths = Lengths(median=900, spread=1.0, low=32, high=8000)
    turns: Lengths = Lengths(median=3, spread=0.6, low=1, high=10)
    think_s: float = 60.0
    reply: Lengths = Lengths(median=500, spread=0.9, low=16, high=4096)
    long_reply: Lengths = Lengths(median=12500, spread=0.2, low=8300, high=16000)
    long_share: float = 0.33
    max_prompt_tokens: int = 49000
    max_new: int = 16384
    tokens_per_s: float = 60.0


def synthetic_trace(work: Workload, rng: np.random.Generator, name: str = "synthetic") -> Trace:
    """Return a trace of `work`; the same state of `rng` gives the same trace."""
    made: list[tuple[int, int, int, tuple[int, ...]]] = []
    segments = _Segments()
    start_s = 0.0
    for gap_s in gaps_s(work.num_tasks, work.mean_gap_s, rng, burstiness=work.burstiness):
        start_s += float(gap_s)
        task = _fan_out if rng.random() < work.fan_out_share else _conversation
        for arrival_s, parts, output_tokens in task(work, start_s, segments, rng):
            # Whole milliseconds: the last bits of a float logarithm differ between machines.
            arrival_ns = round(arrival_s * 1000) * _NS_PER_MS
            prompt_tokens = sum(length for _, length in parts)
            keys = segment_keys(parts, PREFIX_STEP_TOKENS)
            made.append((arrival_ns, prompt_tokens, output_tokens, keys))
    made.sort(key=lambda one: one[0])
    requests = tuple(
        Request(i, arrival_ns - made[0][0], prompt_tokens, output_tokens, work.max_new, keys)
        for i, (arrival_ns, prompt_tokens, output_tokens, keys) in enumerate(made)
    )
    return Trace(name=name, requests=requests, source="synthetic")


class _Segments:
    """Numbers pieces of text that are only known by their length."""

    def __init__(self) -> None:
        self.num = 0

    def new(self, tokens: int) -> tuple[int, int]:
        self.num += 1
        return self.num, tokens


_Parts = list[tuple[int, int]]


def _reply(work: Workload, rng: np.random.Generator) -> int:
    lengths = work.long_reply if rng.random() < work.long_share else work.reply
    return min(lengths.draw(rng), work.max_new)


def _fan_out(
    work: Workload, start_s: float, segments: _Segments, rng: np.random.Generator
) -> Iterator[tuple[float, _Parts, int]]:
    """Yield sub-agents that share the first part of their prompts, within two seconds."""
    shared = segments.new(work.shared_prefix.draw(rng))
    for _ in range(work.fan_out.draw(rng)):
        own = segments.new(work.own_part.draw(rng))
        yield start_s + 2.0 * rng.random(), [shared, own], _reply(work, rng)


def _conversation(
    work: Workload, start_s: float, segments: _Segments, rng: np.random.Generator
) -> Iterator[tuple[float, _Parts, int]]:
    """Yield turns, each with all earlier messages and replies in front of its own message."""
    parts = [segments.new(work.first_message.draw(rng))]
    for _ in range(work.turns.draw(rng)):
        prompt_tokens = sum(length for _, length in parts)
        if prompt_tokens > work.max_prompt_tokens:
            return
        output_tokens = _reply(work, rng)
        yield start_s, list(parts), output_tokens
        # Nobody answers before reading: the reply at a usual pace, then some thought.
        start_s += output_tokens / work.tokens_per_s + work.think_s * float(rng.exponential())
        parts += [segments.new(output_tokens), segments.new(work.message.draw(rng))]


AGENTS = Workload()
AGENTS_SEED = 1


def agents() -> Trace:
    """Return the bundled agent trace: see `data/traces/README.md`."""
    return synthetic_trace(AGENTS, np.random.default_rng(AGENTS_SEED), "agents")


if __name__ == "__main__":
    from qwisp.trace.jsonl import write

    if len(sys.argv) != 2:
        sys.exit("usage: python -m qwisp.trace.synthetic FILE")
    write(agents().requests, sys.argv[1])
