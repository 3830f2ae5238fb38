"""The runs of a certificate: the same requests alone and in company, under several schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from qwisp.engine.build import Engine, open_engine
from qwisp.engine.clients import Reply, Request, Script
from qwisp.engine.hostile import HostileOps
from qwisp.engine.identity import Identity
from qwisp.engine.loading import LoadedModel
from qwisp.engine.ops import Ops
from qwisp.engine.sampling import Sampling
from qwisp.engine.trail import Trail
from qwisp.scheduling.contract import Admit, Capture, End, Grant, Place, Restore, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings

CHUNK_TOKENS = 64
LARGE, MEDIUM, SMALL = 320, 160, 84
LONGEST = 199


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A schedule. `gap_rounds` lie between arrivals; `is_cramped` makes streams move and wait.

    `is_restored` saves each prompt's first part in one session and goes on in another.
    """

    name: str
    gap_rounds: int = 0
    budget_tokens: int = 128
    temperature: float = 0.0
    is_cramped: bool = False
    is_restored: bool = False


CASES = (
    Case(name="together"),
    Case(name="one after another", gap_rounds=3, budget_tokens=64),
    Case(name="whole prompts", gap_rounds=3, budget_tokens=0),
    Case(name="moved and paused", is_cramped=True),
    Case(name="restored", is_restored=True),
    Case(name="drawn", temperature=0.8),
)


class Runs:
    """Runs requests under cases; solo replies are kept, because cases share them.

    `altered` counts, per hostile shim, the results that it changed. `identity` is the engine's own,
    which says more than was asked: the backend, and whether steps are compiled.
    """

    def __init__(
        self, model: LoadedModel, identity: Identity, *, hostile: bool, max_new: int, seed: int
    ) -> None:
        self.model = model
        self.identity = identity
        self.altered: Counter[str] = Counter()
        self._hostile = hostile
        self._max_new = max_new
        rng = np.random.default_rng(seed)
        width, vocab = identity.width, model.decoder.spec.vocab
        # One token, two, a window but for the decoded token, a window, one that outgrows MEDIUM.
        fixed = [1, 2, CHUNK_TOKENS, CHUNK_TOKENS + 1, MEDIUM - 20]
        lengths = [*fixed, *rng.integers(3, LONGEST, width)][:width]
        self.prompts = [tuple(rng.integers(0, vocab, int(n)).tolist()) for n in lengths]
        self._solo: dict[tuple[int, float], Reply] = {}

    @property
    def ids(self) -> range:
        """The requests."""
        return range(len(self.prompts))

    def alone(self, request_id: int, case: Case, trail: Trail | None = None) -> Reply:
        """Return a request's reply with nobody beside it, prefilled from its start."""
        key = (request_id, case.temperature)
        if trail is None and key in self._solo:
            return self._solo[key]
        plain = Case(name="alone", temperature=case.temperature)
        engine, script = self._open([request_id], (LARGE,), plain, trail)
        drive(engine.scheduler, engine.executor)
        self._note(engine)
        return self._solo.setdefault(key, script.replies[request_id])

    def together(
        self, case: Case, trail: Trail | None = None
    ) -> tuple[dict[int, Reply], dict[int, int]]:
        """Return all replies of a case, and how often each request moved."""
        contexts = (LARGE,) * len(self.ids)
        if case.is_cramped:
            contexts = (LARGE, LARGE, MEDIUM, MEDIUM, *(SMALL,) * len(self.ids))[: len(self.ids)]
        engine, script = self._open(list(self.ids), contexts, case, trail)
        if case.is_restored:
            self._restore_all(engine)
        else:
            drive(engine.scheduler, engine.executor)
        self._note(engine)
        moved = Counter(e.id for e in engine.scheduler.log if e.kind in ("move", "resume"))
        return script.replies, dict(moved)

    def _open(
        self, ids: list[int], contexts: tuple[int, ...], case: Case, trail: Trail | None
    ) -> tuple[Engine, Script]:
        requests = {
            i: Request(
                prompt=self.prompts[i], sampling=Sampling(temperature=case.temperature, seed=i)
            )
            for i in ids
        }
        arrivals = {i: case.gap_rounds * n for n, i in enumerate(ids)}
        script = Script.of(requests, max_new=dict.fromkeys(ids, self._max_new), arrivals=arrivals)
        engine = open_engine(
            self.model,
            _sized(contexts),
            script,
            Settings(grow_tokens=16, chunk_tokens=CHUNK_TOKENS, budget_tokens=case.budget_tokens),
            width=self.identity.width,
            safeguards=self.identity.safeguards,
            ops=HostileOps(long_keys=128) if self._hostile else Ops(),
            keeps_logits=True,
        )
        self.identity = engine.identity
        if trail is not None:
            trail.context = engine.executor.context
            trail.context.tap = trail
        return engine, script

    def _restore_all(self, engine: Engine) -> None:
        """Save each prompt's first half in the first session, then go on from it, all at once."""
        run, size = engine.executor.run, LARGE + 8
        places = [Place(n, n * size, size, LARGE) for n in self.ids]
        index = 0
        for i in self.ids:
            half = (len(self.prompts[i]) - 1) // 2
            if half:
                length = len(self.prompts[i])
                begin = (Admit(i, places[0], length), Grant(i, 0, half, 1, False))
                run(Round(index, (*begin, Capture(i, i, half)), (), 1, False))
                run(Round(index + 1, (End(i, "cancelled", "saved", places[0]),), (), 1, False))
                index += 2
        ops: list = []
        for i in self.ids:
            end = len(self.prompts[i]) - 1
            half = end // 2
            ops.append(Admit(i, places[i], end + 1))
            if half:
                ops.append(Restore(i, i, half))
            if end > half:
                ops.append(Grant(i, half, end - half, 1, True))
        run(Round(index, tuple(ops), tuple(self.ids), 1, False))
        run(Round(index + 1, (), tuple(self.ids), self._max_new - 1, False))

    def _note(self, engine: Engine) -> None:
        ops = engine.executor.context.ops
        if isinstance(ops, HostileOps):
            self.altered.update(ops.altered)


def _sized(contexts: tuple[int, ...]) -> Layout:
    return Layout(
        text=",".join(map(str, contexts)),
        kind="sized",
        contexts=contexts,
        margin_rows=8,
        lanes=len(contexts),
        cut="smallest_fit",
        context_tokens=max(contexts),
    )
