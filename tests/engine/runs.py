"""One driven run of the engine on a tiny random model, as tests need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from qwisp.cost import load_cost
from qwisp.engine.build import open_engine
from qwisp.engine.clients import Reply, ScriptedClients, TokenRequest
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.step import Tap, no_tap
from qwisp.engine.sampling import Sampling
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.engine.weights.loading import load_decoder
from qwisp.facts.file import FactRecord
from qwisp.facts.record import Recorded, facts_of
from qwisp.facts.replay import replay_records
from qwisp.scheduling.contract import Executor, LogEntry, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper
from qwisp.sim.cost_executor import CostExecutor

CHUNK = 64


@lru_cache(maxsize=8)
def model_of(name: str, dtype: str = "float32") -> LoadedModel:
    """Return a bundled recall model, or a tiny one with random weights of seed 0."""
    return load_decoder(name if name.startswith("recall_") else f"tiny:{name}", dtype=dtype)


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
    requests: Mapping[int, TokenRequest],
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
    is_compiled: bool = False,
) -> Ran:
    """Drive the real scheduler over the engine and return everything that came of it."""
    script = ScriptedClients.of(requests, max_new=max_new, arrivals=arrivals, cancels=cancels)
    scheduler, executor, _ = open_engine(
        model_of(name, dtype),
        layout,
        script,
        settings or Settings(grow_tokens=16, chunk_tokens=CHUNK, budget_tokens=128),
        safeguards=safeguards,
        ops=ops or Ops(),
        tap=tap,
        ahead=ahead,
        keeps_logits=True,
        poisons=poisons,
        is_compiled=is_compiled,
        has_kernels=False,
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


def prompts(lengths: Iterable[int], seed: int = 0, **sampling: float) -> dict[int, TokenRequest]:
    """Return random prompts of those lengths, ids from 0 on; temperature 0 unless given."""
    rng = np.random.default_rng(seed)
    made = {}
    for i, length in enumerate(lengths):
        rule = Sampling(temperature=sampling.get("temperature", 0.0), seed=seed * 1000 + i)
        made[i] = TokenRequest(prompt=tuple(rng.integers(0, 256, length).tolist()), sampling=rule)
    return made
