"""The runs of a certificate: the same requests alone and in company, under several schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from qwisp.engine.build import Engine, open_engine
from qwisp.engine.cache.buffers import BLOCK
from qwisp.engine.clients import Reply, ScriptedClients, TokenRequest
from qwisp.engine.model.ops import Ops
from qwisp.engine.proof.certificate_definition import DefinitionTap
from qwisp.engine.proof.certificate_evidence import Evidence, Watched
from qwisp.engine.proof.hostile import HostileOps
from qwisp.engine.proof.trail import Trail
from qwisp.engine.sampling import Sampling
from qwisp.engine.spec.identity import Identity
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.scheduling.contract import Admit, Capture, End, Grant, Place, Restore, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings

CHUNK_TOKENS = 64
GROW_TOKENS = 16
SPARE_ROWS = 8
TOKENS = 1300
"""The longest stream unless told: six blocks of keys, the last of them begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A schedule. `gap_rounds` lie between arrivals; `is_cramped` makes streams move and wait.

    `company` is how many run beside the longest request (None: as many as fit the width), which
    stands in place `longest_at` and is in every case; `turn` chooses the others. `is_restored`
    saves each prompt's first part in one session and goes on in another.
    """

    name: str
    company: int | None = None
    longest_at: int = 0
    turn: int = 0
    gap_rounds: int = 0
    budget_tokens: int = 512
    temperature: float = 0.0
    is_cramped: bool = False
    is_restored: bool = False


CASES = (
    Case(name="together", longest_at=1),
    Case(name="one after another", longest_at=4, turn=3, gap_rounds=3, budget_tokens=256),
    Case(name="whole prompts", longest_at=7, turn=6, gap_rounds=3, budget_tokens=0),
    Case(name="moved and paused", is_cramped=True),
    Case(name="restored", longest_at=2, turn=4, is_restored=True),
    Case(name="drawn", company=3, longest_at=3, turn=2, temperature=0.8),
    Case(name="one beside", company=1, longest_at=1),
    Case(name="five beside", company=5, longest_at=3),
    Case(name="six beside", company=6, longest_at=4, turn=4),
)


def prompt_lengths(tokens: int, max_new: int, width: int) -> list[int]:
    """Return the prompts' lengths, the longest first: `tokens` with its reply.

    Then half of it, both sides of the first two block boundaries, a window and one token more, one
    token and two; at least `width` in all.

    >>> prompt_lengths(1300, 48, 8)
    [1252, 626, 257, 1, 511, 64, 255, 513, 2, 256, 65, 512]
    """
    longest = tokens - max_new
    mixed = [longest // 2, BLOCK + 1, 1, 2 * BLOCK - 1, CHUNK_TOKENS, BLOCK - 1]
    mixed += [2 * BLOCK + 1, 2, BLOCK, CHUNK_TOKENS + 1, 2 * BLOCK]
    kept = [longest, *dict.fromkeys(n for n in mixed if 0 < n < longest)]
    while len(kept) < width:
        kept.append(1 + 37 * len(kept) % min(longest, 3 * CHUNK_TOKENS))
    return kept


class Runs:
    """Runs requests under cases; solo replies are kept, because cases share them.

    `altered` counts, per hostile shim, the results that it changed; `evidence` what the runs
    reached. `identity` is the engine's own,
    which says more than was asked: the backend, and whether steps are compiled.
    """

    def __init__(
        self,
        model: LoadedModel,
        identity: Identity,
        *,
        hostile: bool,
        max_new: int,
        seed: int,
        tokens: int = TOKENS,
    ) -> None:
        self.model = model
        self.identity = identity
        self.evidence = Evidence()
        # One for all runs: looking at what it altered costs a result per operation, so it stops.
        self._ops = HostileOps(long_keys=128) if hostile else Ops()
        self._max_new = max_new
        rng = np.random.default_rng(seed)
        vocab = model.decoder.spec.vocab
        lengths = prompt_lengths(tokens, max_new, identity.width)
        self.prompts = [tuple(rng.integers(0, vocab, n).tolist()) for n in lengths]
        self._solo: dict[tuple[int, float], Reply] = {}

    @property
    def altered(self) -> dict[str, int]:
        """Results that each hostile shim changed, of the first ones of each."""
        return dict(self._ops.altered) if isinstance(self._ops, HostileOps) else {}

    def company(self, case: Case) -> list[int]:
        """Return the requests of a case in the order of their places; request 0 is the longest."""
        beside = self.identity.width - 1
        if case.company is not None:
            beside = min(case.company, beside)
        others = list(range(1, len(self.prompts)))
        turn = case.turn % len(others)
        ids = (others[turn:] + others[:turn])[:beside]
        ids.insert(min(case.longest_at, len(ids)), 0)
        return ids

    def alone(self, request_id: int, case: Case, trail: Trail | None = None) -> Reply:
        """Return a request's reply with nobody beside it, prefilled from its start."""
        key = (request_id, case.temperature)
        if trail is None and key in self._solo:
            return self._solo[key]
        plain = Case(name="alone", temperature=case.temperature)
        engine, script = self._open([request_id], (self._whole(0),), plain, trail)
        drive(engine.scheduler, engine.executor)
        return self._solo.setdefault(key, script.replies[request_id])

    def together(
        self, case: Case, trail: Trail | None = None
    ) -> tuple[dict[int, Reply], dict[int, int]]:
        """Return all replies of a case, and how often each request moved."""
        ids = self.company(case)
        contexts = tuple(self._cramped(ids) if case.is_cramped else map(self._whole, ids))
        if case.is_restored:
            # One more large session, so that the longest request goes on where it did not begin.
            contexts = (*contexts[:-1], self._whole(0)) if ids[-1] else (self._whole(0),) * len(ids)
        engine, script = self._open(ids, contexts, case, trail)
        if case.is_restored:
            self._restore_all(engine, ids, contexts)
        else:
            drive(engine.scheduler, engine.executor)
        moved = Counter(e.id for e in engine.scheduler.log if e.kind in ("move", "resume"))
        return script.replies, dict(moved)

    def define(self, request_id: int) -> DefinitionTap:
        """Run a request alone and hold its attention against the definition."""
        tap = DefinitionTap(self.model.decoder.spec, self._ops)
        engine, _ = self._open([request_id], (self._whole(0),), Case(name="definition"), tap)
        drive(engine.scheduler, engine.executor)
        self.evidence.defined_rows += tap.rows
        return tap

    def _whole(self, request_id: int) -> int:
        """Return the context that holds a request and its reply."""
        return len(self.prompts[request_id]) + self._max_new + SPARE_ROWS

    def _cramped(self, ids: list[int]) -> list[int]:
        """Return contexts of which the longer half of the requests each have a tight one, to grow
        out of, and a whole one."""
        longest = sorted(ids, key=lambda i: -len(self.prompts[i]))
        contexts = []
        for i in longest[: -(-len(ids) // 2)]:
            grown = min(GROW_TOKENS, self._max_new)
            contexts += [self._whole(i), len(self.prompts[i]) + grown + 2]
        return contexts[: len(ids)]

    def _open(
        self,
        ids: list[int],
        contexts: tuple[int, ...],
        case: Case,
        tap: Trail | DefinitionTap | None,
    ) -> tuple[Engine, ScriptedClients]:
        requests = {
            i: TokenRequest(
                prompt=self.prompts[i], sampling=Sampling(temperature=case.temperature, seed=i)
            )
            for i in ids
        }
        arrivals = {i: case.gap_rounds * n for n, i in enumerate(ids)}
        script = ScriptedClients.of(
            requests, max_new=dict.fromkeys(ids, self._max_new), arrivals=arrivals
        )
        budget = case.budget_tokens
        engine = open_engine(
            self.model,
            Layout.sessions(*contexts, margin_rows=SPARE_ROWS),
            script,
            Settings(grow_tokens=GROW_TOKENS, chunk_tokens=CHUNK_TOKENS, budget_tokens=budget),
            width=self.identity.width,
            safeguards=self.identity.safeguards,
            ops=self._ops if isinstance(self._ops, HostileOps) else None,
            keeps_logits=True,
        )
        self.identity = engine.identity
        executor = engine.executor
        watched = Watched(executor.decoder, self.evidence, is_restoring=case.is_restored)
        executor.decoder = watched  # type: ignore[assignment]  it is asked for these two only
        if isinstance(tap, Trail):
            tap.context = executor.context
        elif tap is not None:
            tap.watched = watched
            tap.has_kernels = executor.context.kernels is not None
        if tap is not None:
            executor.context.tap = tap
        return engine, script

    def _restore_all(self, engine: Engine, ids: list[int], contexts: tuple[int, ...]) -> None:
        """Save a prefix of each prompt in one session, then go on from it, all at once.

        Half of a prompt, and of the longest one nearly all, so that a ring has wrapped in it.
        """
        run = engine.executor.run
        sizes = [context + SPARE_ROWS for context in contexts]
        places = [Place(n, sum(sizes[:n]), sizes[n], context) for n, context in enumerate(contexts)]
        first = places[max(n for n, c in enumerate(contexts) if c == max(contexts))]
        index, saved = 0, {}
        for i in ids:
            length = len(self.prompts[i])
            saved[i] = (length - 1) // 2 if i else max(0, length - 2 - CHUNK_TOKENS // 2)
            if saved[i]:
                begin = (Admit(i, first, length), Grant(i, 0, saved[i], 1, False))
                run(Round(index, (*begin, Capture(i, i, saved[i])), (), 1, False))
                run(Round(index + 1, (End(i, "cancelled", "saved", first),), (), 1, False))
                index += 2
        ops: list = []
        for n, i in enumerate(ids):
            end = len(self.prompts[i]) - 1
            ops.append(Admit(i, places[n], end + 1))
            if saved[i]:
                ops.append(Restore(i, i, saved[i]))
            if end > saved[i]:
                ops.append(Grant(i, saved[i], end - saved[i], 1, True))
        run(Round(index, tuple(ops), tuple(ids), 1, False))
        run(Round(index + 1, (), tuple(ids), self._max_new - 1, False))
