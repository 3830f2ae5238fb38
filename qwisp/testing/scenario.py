"""Tiny scenarios: a layout, a few requests, the whole scheduler, an engine of lists, its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from qwisp.policies import scheduler_for
from qwisp.scheduling.contract import Executor, LogEntry
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, RowBytes, SessionSize, parse_layout
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing.script import ScriptedRequest
from qwisp.testing.toy_engine import ToyEngine


class Played(NamedTuple):
    """A scenario after its last round."""

    scheduler: Scheduler
    engine: ToyEngine

    @property
    def log(self) -> list[LogEntry]:
        """Every decision."""
        return self.scheduler.log

    def story(self, *kinds: str) -> list[tuple[int, str, int]]:
        """Return `(round, kind, id)` of the decisions of these kinds; of all without any."""
        return [(e.round, e.kind, e.id) for e in self.log if not kinds or e.kind in kinds]


sessions = Layout.sessions


def play(
    layout: str | Layout,
    requests: Iterable[ScriptedRequest],
    settings: Settings | None = None,
    *,
    size: SessionSize | None = None,
    context_tokens: int = 1024,
    cut: str | None = None,
    yields: Callable[[int], int] | None = None,
    wrap: Callable[[Executor], Executor] | None = None,
) -> Played:
    """Return the scenario after everything ended.

    `context_tokens` is the model's; of a session list it is also the engine's own session. `wrap`
    puts a wrapper such as `Stepwise` around the engine, `yields` gives it drafts.

    >>> played = play(Layout.sessions(16, 32), [ScriptedRequest(1, 8, 10)], Settings(grow_tokens=4))
    >>> played.story("admit", "move", "finished")
    [(0, 'admit', 1), (8, 'move', 1), (9, 'finished', 1)]
    """
    size = size or RowBytes()
    if isinstance(layout, str):
        layout = parse_layout(
            layout, size=size, memory_bytes=4096, model_context_tokens=context_tokens
        )
    if cut is not None:
        layout = replace(layout, cut=cut)
    settings = settings or Settings()
    step = settings.prefix_step_tokens
    scheduler = scheduler_for(layout, size, settings)
    engine = ToyEngine(requests, scheduler.space.num_rows, yields=yields, prefix_step_tokens=step)
    drive(scheduler, wrap(engine) if wrap else engine)
    scheduler.check()
    return Played(scheduler, engine)
