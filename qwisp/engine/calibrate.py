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
from qwisp.engine.build import Engine, open_engine
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.scheduling.contract import Ask, Outcome, Place, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper

NUM_FITTED = 40
"""Prefill points that are fitted; further ones are only predicted and show in the residuals."""


class Finished(Wrapper):
    """Has done a round's work when `run` returns: prefill is lazy otherwise."""

    def run(self, round: Round) -> Outcome:
        """Carry out the round and wait for the arrays."""
        outcome = self.inner.run(round)
        mx.eval(self.inner.arena.arrays)
        return outcome


def calibrate(
    model: LoadedModel,
    *,
    machine: str,
    lanes: int,
    context_tokens: int,
    chunk_tokens: int,
    clock: Callable[[], float],
    repeats: int = 2,
    progress: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """Return prefill, decode and copy times of `model`, ready for `qwisp.cost.write_cost`.

    Long and short prompts run under budgets of one, two and four chunks: one budget cannot tell a
    cost per round from one per chunk, one length not a cost per used row from one per lane. A first
    short run warms up and is thrown away; all others repeat `repeats` times and give medians.
    `clock` returns seconds.
    """
    chunk = chunk_tokens
    two = _open(
        model, 2, context_tokens, ScriptedClients({}, []), Settings(chunk_tokens=chunk), lanes
    )
    label, copies = two.identity.label, _copies(two, context_tokens, clock, repeats)
    del two  # its sessions would lie beside those of the runs
    lengths = sorted({max(4 * chunk, context_tokens >> i) for i in range(0, 6, 2)})
    plan = [(length, chunks) for length in lengths for chunks in (1, 2, 4)]
    rounds: list[TimedRound] = []
    for number, (length, chunks) in enumerate([plan[0], *plan * repeats]):
        progress(f"run {number} of {len(plan) * repeats}: {length} tokens, {chunks} chunks a round")
        asks = {ask.id: ask for ask in calibration_asks(chunk, length, lanes)}
        timed = timed_run(
            model,
            asks,
            random_requests(asks, model.decoder.spec.vocab),
            settings=Settings(budget_tokens=chunks * chunk, chunk_tokens=chunk),
            lanes=lanes,
            context_tokens=context_tokens,
            clock=clock,
        )
        if number:
            rounds += timed
    prefill, decode = measured_points(rounds)
    return Measurements(
        name=f"qwisp calibrate, {label}",
        model=model.name,
        machine=machine,
        chunk_tokens=chunk,
        chunk_rule="aligned",
        prefill=hold_out(prefill, NUM_FITTED),
        decode=decode,
        copies=copies,
        sources=(f"measured by qwisp calibrate: {label}, mlx {mx.__version__}",),
        notes=(f"medians of {repeats} runs after one that warmed up",),
    )


def timed_run(
    model: LoadedModel,
    asks: Mapping[int, Ask],
    requests: Mapping[int, TokenRequest],
    *,
    settings: Settings,
    lanes: int,
    context_tokens: int,
    clock: Callable[[], float],
) -> list[TimedRound]:
    """Return the timed rounds of one run in which all requests come at once."""
    script = ScriptedClients.of(requests, max_new={i: ask.max_new for i, ask in asks.items()})
    engine = _open(model, lanes, context_tokens, script, settings, lanes)
    timed = Timed(Finished(engine.executor), clock)
    drive(engine.scheduler, timed)
    return timed.rounds


def _open(
    model: LoadedModel,
    num: int,
    context_tokens: int,
    script: ScriptedClients,
    settings: Settings,
    width: int,
) -> Engine:
    """Return an engine of `num` equal sessions that runs every step plainly, one at a time."""
    return open_engine(
        model,
        Layout.windows(num, context_tokens),
        script,
        settings,
        width=width,
        ahead=0,
        is_compiled=False,
        has_kernels=False,
    )


def random_requests(asks: Mapping[int, Ask], vocab: int, seed: int = 0) -> dict[int, TokenRequest]:
    """Return prompts of random tokens for the asks; no reply stops by itself."""
    rng = np.random.default_rng(seed)
    return {
        i: TokenRequest(prompt=tuple(rng.integers(0, vocab, ask.prompt_tokens).tolist()))
        for i, ask in asks.items()
    }


def _copies(
    engine: Engine, context_tokens: int, clock: Callable[[], float], repeats: int
) -> tuple[CopyPoint, ...]:
    """Return times of moves between two sessions, from a quarter of one to all of it."""
    arena = engine.executor.arena
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
                points.append(CopyPoint(f"move of {rows} rows", seconds, engine.size.bytes(rows)))
    return tuple(points)
