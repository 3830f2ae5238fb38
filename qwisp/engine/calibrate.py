"""Measure this engine on this machine: what a cost model is fitted from.

The rounds are the scheduler's own, over whole windows, so that nothing moves or waits while prompts
of many lengths are prefilled and every width decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx
import numpy as np

from qwisp.cost.measured import CopyPoint, Measurements
from qwisp.cost.timed import Timed, TimedRound, calibration_asks, hold_out, measured_points
from qwisp.engine.arena import Arena, ArenaPlan
from qwisp.engine.clients import Request, Script
from qwisp.engine.decoder import Decoder
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.identity import Identity
from qwisp.engine.step import Context
from qwisp.scheduling.contract import Ask, Outcome, Place, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings

NUM_FITTED = 40
"""Prefill points that are fitted; further ones are only predicted and show in the residuals."""


class Finished(MlxExecutor):
    """An engine that has done a round's work when `run` returns: prefill is lazy otherwise."""

    def run(self, round: Round) -> Outcome:
        """Carry out the round and wait for the arrays."""
        outcome = super().run(round)
        mx.eval(self.arena.arrays)
        return outcome


def calibrate(
    decoder: Decoder,
    identity: Identity,
    size: SessionSize,
    *,
    name: str,
    model: str,
    machine: str,
    lanes: int,
    context_tokens: int,
    clock: Callable[[], float],
    repeats: int = 2,
    context: Context | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """Return prefill, decode and copy times of `decoder`, ready for `qwisp.cost.write_cost`.

    Long and short prompts run under budgets of one, two and four chunks: one budget cannot tell a
    cost per round from one per chunk, one length not a cost per used row from one per lane. A first
    short run warms up and is thrown away; all others repeat `repeats` times and give medians.
    `clock` returns seconds.
    """
    chunk = identity.chunk_tokens
    lengths = sorted({max(4 * chunk, context_tokens >> i) for i in range(0, 6, 2)})
    plan = [(length, chunks) for length in lengths for chunks in (1, 2, 4)]
    rounds: list[TimedRound] = []
    for number, (length, chunks) in enumerate([plan[0], *plan * repeats]):
        progress(f"run {number} of {len(plan) * repeats}: {length} tokens, {chunks} chunks a round")
        asks = {ask.id: ask for ask in calibration_asks(chunk, length, lanes)}
        timed = timed_run(
            decoder,
            identity,
            size,
            asks,
            random_requests(asks, decoder.spec.vocab),
            settings=Settings(budget_tokens=chunks * chunk, chunk_tokens=chunk),
            lanes=lanes,
            context_tokens=context_tokens,
            clock=clock,
            context=context,
        )
        if number:
            rounds += timed
    prefill, decode = measured_points(rounds)
    return Measurements(
        name=name,
        model=model,
        machine=machine,
        chunk_tokens=chunk,
        chunk_rule="aligned",
        prefill=hold_out(prefill, NUM_FITTED),
        decode=decode,
        copies=_copies(decoder, identity, size, context_tokens, clock, repeats),
        sources=(f"measured by qwisp calibrate: {identity.label}, mlx {mx.__version__}",),
        notes=(f"medians of {repeats} runs after one that warmed up",),
    )


def timed_run(
    decoder: Decoder,
    identity: Identity,
    size: SessionSize,
    asks: Mapping[int, Ask],
    requests: Mapping[int, Request],
    *,
    settings: Settings,
    lanes: int,
    context_tokens: int,
    clock: Callable[[], float],
    context: Context | None = None,
) -> list[TimedRound]:
    """Return the timed rounds of one run in which all requests come at once."""
    layout = Layout.windows(lanes, context_tokens)
    plan = ArenaPlan.of_sessions([context_tokens] * lanes, identity.chunk_tokens)
    arena = Arena(decoder.spec, plan, identity.dtype)
    script = Script.of(requests, max_new={i: ask.max_new for i, ask in asks.items()})
    executor = Finished(decoder, arena, identity, script, context=context)
    timed = Timed(executor, clock)
    drive(Scheduler(RowSpace(layout, size), settings), timed)
    return timed.rounds


def random_requests(asks: Mapping[int, Ask], vocab: int, seed: int = 0) -> dict[int, Request]:
    """Return prompts of random tokens for the asks; no reply stops by itself."""
    rng = np.random.default_rng(seed)
    return {
        i: Request(prompt=tuple(rng.integers(0, vocab, ask.prompt_tokens).tolist()))
        for i, ask in asks.items()
    }


def _copies(
    decoder: Decoder,
    identity: Identity,
    size: SessionSize,
    context_tokens: int,
    clock: Callable[[], float],
    repeats: int,
) -> tuple[CopyPoint, ...]:
    """Return times of moves between two sessions, from a quarter of one to all of it."""
    plan = ArenaPlan.of_sessions([context_tokens] * 2, identity.chunk_tokens)
    arena = Arena(decoder.spec, plan, identity.dtype)
    places = [Place(slot, slot * context_tokens, context_tokens, context_tokens) for slot in (0, 1)]
    points = []
    for repeat in range(repeats + 1):
        for quarters in (1, 2, 4):
            rows = context_tokens * quarters // 4
            mx.eval(arena.arrays)
            begin = clock()
            arena.move(places[0], places[1], rows)
            mx.eval(arena.arrays)
            seconds = clock() - begin
            if repeat:
                points.append(CopyPoint(f"move of {rows} rows", seconds, size.bytes(rows)))
    return tuple(points)
