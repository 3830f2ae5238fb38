"""Is batched decode bit-identical to solo? Schedules run both ways and compared word by word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qwisp.engine.build import open_engine
from qwisp.engine.clients import Reply, Request, Script
from qwisp.engine.hostile import HostileOps
from qwisp.engine.identity import Identity, Safeguards
from qwisp.engine.loading import LoadedModel
from qwisp.engine.ops import Ops
from qwisp.engine.sampling import Sampling
from qwisp.engine.trail import Parting, Trail, first_parting, ulps
from qwisp.errors import BadInput
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

CHUNK_TOKENS = 64
KIND_NAMES = {FullAttention: "full attention", SlidingWindow: "sliding window", GatedDelta: "delta"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A schedule: session contexts, rounds of arrival, and whether replies are drawn."""

    name: str
    contexts: tuple[int, ...]
    arrivals: tuple[int, ...] = ()
    budget_tokens: int = 128
    temperature: float = 0.0


class Row(NamedTuple):
    """One request under one case: identical (`step` None), or where and by what it differs."""

    case: str
    request: int
    steps: int
    moves: int
    step: int | None
    ulp: int
    operation: str
    layer_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Every row, the identity it holds for, and what the hostile kernels altered."""

    model: str
    identity: Identity
    rows: tuple[Row, ...]
    altered: Mapping[str, int]

    @property
    def holds(self) -> bool:
        """No bit differed."""
        return all(row.step is None for row in self.rows)


def cases(lanes: int) -> tuple[Case, ...]:
    """Return the schedules of a certificate for so many requests at once."""
    large, later = (320,) * lanes, tuple(3 * i for i in range(lanes))
    small = (320, 320, *(96,) * max(1, lanes - 2))
    return (
        Case(name="together", contexts=large),
        Case(name="one after another", contexts=large, arrivals=later, budget_tokens=64),
        Case(name="whole prompts", contexts=large, arrivals=later, budget_tokens=0),
        Case(name="moved and paused", contexts=small),
        Case(name="drawn", contexts=large, temperature=0.8),
    )


def certify(
    model: LoadedModel,
    *,
    width: int = 8,
    hostile: bool = False,
    safeguards: Safeguards | None = None,
    max_new: int = 48,
    seed: int = 0,
) -> Certificate:
    """Return the certificate of a model at a decode width.

    Runs every case with `width` requests at once and each request alone. Raises `BadInput` for a
    width below 8 or a reply shorter than two tokens.
    """
    if max_new < 2:
        raise BadInput(f"replies of {max_new} tokens", "compare at least 2")
    runner = _Runner(model, width, hostile, safeguards or Safeguards(), max_new, seed)
    rows = [row for case in cases(width) for row in runner.rows(case)]
    identity = Identity(
        width=width,
        chunk_tokens=CHUNK_TOKENS,
        dtype=model.dtype,  # type: ignore[arg-type]
        safeguards=runner.safeguards,
    )
    return Certificate(
        model=model.name, identity=identity, rows=tuple(rows), altered=dict(runner.altered)
    )


class _Runner:
    """Runs schedules of one certificate; solo runs are kept, because cases share them."""

    def __init__(
        self,
        model: LoadedModel,
        width: int,
        hostile: bool,
        safeguards: Safeguards,
        max_new: int,
        seed: int,
    ) -> None:
        self.model = model
        self.width = width
        self.hostile = hostile
        self.safeguards = safeguards
        self.max_new = max_new
        self.altered: dict[str, int] = {}
        rng = np.random.default_rng(seed)
        vocab = model.decoder.spec.vocab
        lengths = [1, 2, CHUNK_TOKENS, CHUNK_TOKENS + 1, *rng.integers(3, 200, width)][:width]
        self.prompts = [tuple(rng.integers(0, vocab, int(n)).tolist()) for n in lengths]
        self._solo: dict[tuple[int, float], Reply] = {}

    def rows(self, case: Case) -> Iterator[Row]:
        """Yield a row per request of a case."""
        ids = range(len(self.prompts))
        replies, moves, _ = self._run(case, ids, case.contexts, None)
        for i in ids:
            solo = self._alone(i, case)
            step, ulp = _first_difference(solo, replies[i])
            parting = self._bisect(case, i) if step is not None else None
            operation = parting.operation if parting else ("not found" if step is not None else "")
            where = f" at position {parting.position}" if parting else ""
            yield Row(
                case.name,
                i,
                len(solo.logits),
                moves.get(i, 0),
                step,
                ulp,
                operation + where,
                self._layer_kind(operation),
            )

    def _alone(self, request_id: int, case: Case) -> Reply:
        key = (request_id, case.temperature)
        if key not in self._solo:
            replies, _, _ = self._run(case, [request_id], (max(case.contexts),), None)
            self._solo[key] = replies[request_id]
        return self._solo[key]

    def _bisect(self, case: Case, request_id: int) -> Parting | None:
        """Run both ways once more, keeping every operation's bits, and return where they part."""
        together, alone = Trail(), Trail()
        self._run(case, range(len(self.prompts)), case.contexts, together)
        self._run(case, [request_id], (max(case.contexts),), alone)
        return first_parting(alone, together, request_id)

    def _run(
        self, case: Case, ids: range | list[int], contexts: tuple[int, ...], trail: Trail | None
    ) -> tuple[dict[int, Reply], dict[int, int], None]:
        requests = {
            i: Request(
                prompt=self.prompts[i], sampling=Sampling(temperature=case.temperature, seed=i)
            )
            for i in ids
        }
        arrivals = dict(enumerate(case.arrivals)) if len(requests) > 1 else {}
        script = Script.of(requests, max_new=dict.fromkeys(ids, self.max_new), arrivals=arrivals)
        ops = HostileOps(long_keys=128) if self.hostile else Ops()
        layout = _sized(contexts)
        settings = Settings(
            grow_tokens=16, chunk_tokens=CHUNK_TOKENS, budget_tokens=case.budget_tokens
        )
        engine = open_engine(
            self.model,
            layout,
            script,
            settings,
            width=self.width,
            safeguards=self.safeguards,
            ops=ops,
            keeps_logits=True,
        )
        if trail is not None:
            trail.context = engine.executor.context
            trail.context.tap = trail
        drive(engine.scheduler, engine.executor)
        if isinstance(ops, HostileOps):
            for shim, count in ops.altered.items():
                self.altered[shim] = self.altered.get(shim, 0) + count
        moves: dict[int, int] = {}
        for entry in engine.scheduler.log:
            if entry.kind in ("move", "resume"):
                moves[entry.id] = moves.get(entry.id, 0) + 1
        return script.replies, moves, None

    def _layer_kind(self, operation: str) -> str:
        head, _, rest = operation.partition("layers.")
        del head
        if not rest:
            return "output" if operation else ""
        layer = self.model.decoder.spec.blocks[int(rest.split(".")[0].split(" ")[0])].layer
        return KIND_NAMES[type(layer)]


def _first_difference(solo: Reply, got: Reply) -> tuple[int | None, int]:
    """Return (first step whose logits differ, ulp there); a missing step differs."""
    for step, (a, b) in enumerate(zip(solo.logits, got.logits, strict=False)):
        if not np.array_equal(a, b):
            return step, ulps(a, b)
    if len(solo.logits) != len(got.logits):
        return min(len(solo.logits), len(got.logits)), 0
    return None, 0


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
