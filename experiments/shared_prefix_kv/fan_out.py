"""Several lanes that begin with the same prompt, on the engine. Run in a process of its own.

`python fan_out.py '{"config": {...}, "lanes": 3, ...}'` prints one JSON object: a fresh process,
so that the highest footprint is that of this run. `toy.py` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from qwisp.engine.build import Engine, open_engine
from qwisp.engine.cache.buffers import Recurrent, Rows
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.model.ops import Ops
from qwisp.engine.proof.hostile import HostileOps
from qwisp.engine.spec.dtypes import raw_words
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.weights.loaded import LoadedModel, made_model
from qwisp.engine.weights.random_weights import random_weights
from qwisp.memory.instruments import Footprint
from qwisp.scheduling.contract import Admit, Ask, Executor, Fact, Grant, Outcome, Place, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper
from qwisp.trace.prefix_key import prefix_keys

STEP_TOKENS = 64
BUDGET_TOKENS = 256  # one window a round: who arrives in the next one finds the prefill under way


def load(config: dict[str, Any]) -> LoadedModel:
    """Return the model of a config with random weights of seed 0."""
    spec = read_decoder(config)
    weights = random_weights(spec, 0, config["dtype"])
    return made_model("toy", config, spec, weights, config["dtype"])


@dataclass(slots=True)
class Watch(Wrapper):
    """An executor that notes places, prefilled tokens and the highest headline of one a round."""

    inner: Executor
    peak_bytes: int = 0
    instrument: str = ""
    prefilled_tokens: int = 0
    places: dict[int, Place] = field(default_factory=dict)

    def run(self, round: Round) -> Outcome:
        outcome = self.inner.run(round)
        assert not outcome.failed, outcome.failed
        for op in round.ops:
            if isinstance(op, Admit):
                self.places[op.id] = op.place
            if isinstance(op, Grant):
                self.prefilled_tokens += op.num_tokens * outcome.rounds
        reading = Footprint.sample(os.getpid()).headline
        self.peak_bytes = max(self.peak_bytes, reading.num_bytes)
        self.instrument = reading.instrument
        return outcome


def serve(
    model: LoadedModel,
    prompts: list[tuple[int, ...]],
    *,
    new_tokens: int,
    chunk_tokens: int,
    prefix_bytes: int = 0,
    ops: Ops | None = None,
) -> tuple[Engine, Watch, ScriptedClients]:
    """Drive the scheduler over the engine, a session per prompt; all but one come a round later."""
    rows = max(map(len, prompts)) + new_tokens
    rows = -(-rows // chunk_tokens) * chunk_tokens
    layout = Layout.windows(len(prompts), rows)
    settings = Settings(
        chunk_tokens=chunk_tokens,
        budget_tokens=BUDGET_TOKENS,
        prefix_bytes=prefix_bytes,
        prefix_step_tokens=STEP_TOKENS,
        boundary_tokens=STEP_TOKENS,
        min_shared_tokens=STEP_TOKENS,
    )
    asks = [
        Ask(i, len(p), new_tokens, prefix_keys(p, STEP_TOKENS) if prefix_bytes else ())
        for i, p in enumerate(prompts)
    ]
    requests = {i: TokenRequest(prompt=prompt) for i, prompt in enumerate(prompts)}
    script = ScriptedClients(requests, [Fact(min(ask.id, 1), ask=ask) for ask in asks])
    engine = open_engine(model, layout, script, settings, ops=ops)
    watch = Watch(engine.executor)
    drive(engine.scheduler, watch)
    return engine, watch, script


def fan_out(
    config: dict[str, Any],
    lanes: int,
    shared_tokens: int,
    own_tokens: int,
    *,
    keeps_prefixes: bool,
    **how: int,
) -> dict[str, Any]:
    """Return what B lanes with the same beginning hold, and what of it is the same bits again.

    `how` gives `new_tokens` and `chunk_tokens`.
    """
    rng = np.random.default_rng(lanes)
    beginning = tuple(rng.integers(0, 256, shared_tokens).tolist())
    own = [tuple(rng.integers(0, 256, own_tokens).tolist()) for _ in range(lanes)]
    prompts = [beginning + end for end in own]
    kept_bytes = 2**30 if keeps_prefixes else 0
    engine, watch, script = serve(load(config), prompts, prefix_bytes=kept_bytes, **how)
    arena = engine.executor.arena
    rows = arena.plan.num_rows // lanes
    return {
        "arena_bytes": sum(arena.bytes_by_class().values()),
        "predicted_arena_bytes": lanes * engine.size.bytes(rows),
        "duplicated_bytes": duplicated_bytes(engine, watch.places, shared_tokens),
        "predicted_duplicated_bytes": (lanes - 1) * shared_tokens * engine.size.row_bytes,
        "blob_bytes": engine.executor.blobs.num_bytes,
        "prefilled_tokens": watch.prefilled_tokens,
        "peak_bytes": watch.peak_bytes,
        "peak_instrument": watch.instrument,
        "mlx_peak_bytes": mx.get_peak_memory(),
        "replies": [script.replies[i].tokens for i in range(lanes)],
    }


def duplicated_bytes(engine: Engine, places: dict[int, Place], shared_tokens: int) -> int:
    """Return the bytes of rows in lanes after the first that have the first lane's bits."""
    total = 0
    for buffer in engine.executor.arena.buffers:
        if not isinstance(buffer, Rows):
            continue
        for array in buffer.arrays:
            words = raw_words(array)
            own = [words[:, p.start_row : p.start_row + shared_tokens] for p in places.values()]
            for other in own[1:]:
                is_equal = (other == own[0]).all(axis=-1)
                total += int(is_equal.sum()) * other.shape[-1] * other.itemsize
    return total


def warm_lane(
    config: dict[str, Any], prompt_tokens: int, *, new_tokens: int, chunk_tokens: int, hostile: bool
) -> dict[str, int]:
    """Return how many rows of a reply have other bits when decode wrote them than by prefill."""
    model = load(config)
    prompt = tuple(np.random.default_rng(7).integers(0, 256, prompt_tokens).tolist())

    def once(prompt: tuple[int, ...], new_tokens: int) -> tuple[Engine, Watch, ScriptedClients]:
        ops = HostileOps() if hostile else None
        return serve(model, [prompt], new_tokens=new_tokens, chunk_tokens=chunk_tokens, ops=ops)

    live, watch, script = once(prompt, new_tokens)
    again, other, _ = once(prompt + tuple(script.replies[0].tokens), 1)
    # The last prompt token is decoded, and the last token of a reply is never read again.
    written = slice(prompt_tokens - 1, prompt_tokens - 1 + new_tokens)
    rows, changed = _compare(live, again, watch.places[0], other.places[0], written)
    return {"rows": rows, "rows_changed": changed}


def _compare(
    live: Engine, again: Engine, place: Place, other: Place, written: slice
) -> tuple[int, int]:
    rows = changed = 0
    for a, b in zip(live.executor.arena.buffers, again.executor.arena.buffers, strict=True):
        if isinstance(a, Recurrent):
            continue
        for x, y in zip(a.arrays, b.arrays, strict=True):
            mine = raw_words(x)[:, place.start_row :][:, written]
            theirs = raw_words(y)[:, other.start_row :][:, written]
            rows += mine.shape[0] * mine.shape[1]
            changed += int((mine != theirs).any(axis=-1).sum())
    return rows, changed


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps((warm_lane if "hostile" in given else fan_out)(**given)))
