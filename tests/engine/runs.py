"""One driven run of the engine on a tiny random model, as tests need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from qwisp.cost import load_cost
from qwisp.engine.arena import Arena
from qwisp.engine.build import arena_plan
from qwisp.engine.clients import Reply, Request, Script
from qwisp.engine.decoder import Decoder
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.identity import Identity, Safeguards, decode_width
from qwisp.engine.ops import Ops
from qwisp.engine.random_weights import random_weights
from qwisp.engine.sampling import Sampling
from qwisp.engine.step import Context, Tap, no_tap
from qwisp.engine.tiny import tiny_config
from qwisp.facts.file import FactRecord
from qwisp.facts.record import Recorded, facts_of
from qwisp.facts.replay import replay_records
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Executor, LogEntry, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper
from qwisp.sim.cost_executor import CostExecutor
from qwisp.spec.model import ModelSpec

CHUNK = 64


_BUILT: dict[str, Decoder] = {}


def register_decoder(name: str, decoder: Decoder) -> None:
    """Make a decoder known to `Hand` by name."""
    _BUILT[name] = decoder


def tiny_decoder(name: str, dtype: str = "float32") -> Decoder:
    """Return a registered decoder, or a tiny one with random weights of seed 0."""
    return _BUILT[name] if name in _BUILT else _random_decoder(name, dtype)


@lru_cache(maxsize=4)
def _random_decoder(name: str, dtype: str) -> Decoder:
    spec = DecoderSpec.from_config(tiny_config(name))
    return Decoder(spec, random_weights(spec, 0, dtype), dtype)


def sized(contexts: Sequence[int], margin: int = 8) -> Layout:
    """Return a sized list of sessions, as the tests want it: small."""
    return Layout.sessions(*contexts, margin_rows=margin)


@dataclass(slots=True)
class Ran:
    """What a run left behind."""

    scheduler: Scheduler
    recorded: Recorded
    replies: Mapping[int, Reply]
    rounds: list[Round] = field(default_factory=list)
    executor: MlxExecutor | None = None


class Watch(Wrapper):
    """Keeps the rounds it passes on."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self.rounds: list[Round] = []

    def run(self, round: Round):
        self.rounds.append(round)
        return self.inner.run(round)


def run(
    name: str,
    requests: Mapping[int, Request],
    max_new: Mapping[int, int | None],
    *,
    layout: Layout,
    dtype: str = "float32",
    arrivals: Mapping[int, int] | None = None,
    cancels: Mapping[int, int] | None = None,
    settings: Settings | None = None,
    safeguards: Safeguards | None = None,
    ops: Ops | None = None,
    tap: Tap = no_tap,
    wrap: Callable[[Executor], Executor] = lambda inner: inner,
    ahead: int = 0,
    poisons: bool = False,
    chunk: int = CHUNK,
    is_compiled: bool = False,
) -> Ran:
    """Drive the real scheduler over the engine and return everything that came of it."""
    decoder = tiny_decoder(name, dtype)
    settings = settings or Settings(grow_tokens=16, chunk_tokens=chunk, budget_tokens=128)
    space = RowSpace(layout, SessionBytes(ModelSpec.from_config(tiny_config(name)), None, chunk))
    scheduler = Scheduler(space, settings)
    identity = Identity(
        width=decode_width(layout.lanes),
        chunk_tokens=chunk,
        dtype=dtype,
        safeguards=safeguards or Safeguards(),
        is_compiled=is_compiled,
    )
    arena = Arena(decoder.spec, arena_plan(space, layout, chunk), dtype)
    script = Script.of(requests, max_new=max_new, arrivals=arrivals, cancels=cancels)
    context = Context(ops or Ops(), identity.safeguards, tap, poisons)
    executor = MlxExecutor(
        decoder, arena, identity, script, context=context, ahead=ahead, keeps_logits=True
    )
    recorded = Recorded(wrap(executor))
    watch = Watch(recorded)
    drive(scheduler, watch)
    scheduler.check()
    return Ran(scheduler, recorded, script.replies, watch.rounds, executor)


def replayed(
    ran: Ran, records: Iterable[FactRecord] | None = None, *, stepwise: bool = False
) -> list[LogEntry]:
    """Return what a fresh scheduler decides on a run's facts while the simulator goes along."""
    space = ran.scheduler.space
    clock = CostExecutor([], load_cost("qwen3.6-35b-a3b", "m1-max-64gb"), space.size)
    again = replay_records(
        facts_of(ran.recorded) if records is None else records,
        space.layout,
        space.size,
        ran.scheduler.settings,
        clock=clock,
        stepwise=stepwise,
    )
    again.check()
    return again.log


def prompts(lengths: Iterable[int], seed: int = 0, **sampling: float) -> dict[int, Request]:
    """Return random prompts of those lengths, ids from 0 on; temperature 0 unless given."""
    rng = np.random.default_rng(seed)
    made = {}
    for i, length in enumerate(lengths):
        rule = Sampling(temperature=sampling.get("temperature", 0.0), seed=seed * 1000 + i)
        made[i] = Request(prompt=tuple(rng.integers(0, 256, length).tolist()), sampling=rule)
    return made
