"""`MlxExecutor`: carries out the scheduler's rounds on real arrays. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from qwisp.engine.arena import Arena
from qwisp.engine.blobs import Blob, Blobs, BlobUnusable
from qwisp.engine.clients import Clients, Request
from qwisp.engine.decoder import Decoder
from qwisp.engine.identity import Identity
from qwisp.engine.ops import Ops
from qwisp.engine.own_kernels import OwnKernels
from qwisp.engine.sampling import choose
from qwisp.engine.step import Context, Lane, Step, Window
from qwisp.engine.trail import raw_words
from qwisp.errors import QwispError
from qwisp.scheduling.contract import (
    Admit,
    Capture,
    Drop,
    End,
    Fact,
    Grant,
    Move,
    Operation,
    Outcome,
    Pause,
    Place,
    Restore,
    Resume,
    Round,
)


@dataclass(slots=True)
class _Live:
    """A stream: `length` tokens lie in its place, `token` comes next."""

    id: int
    request: Request
    place: Place
    length: int = 0
    token: int = 0


@dataclass(slots=True)
class _Issued:
    """A decode step whose result was not looked at yet."""

    lanes: list[_Live]
    tokens: mx.array
    logits: mx.array


class MlxExecutor:
    """Runs a decoder over an arena, one round at a time.

    `ahead=1` issues a repeated decode step before the one before it was read; a stop is then
    reported at most one round later, and the step that ran in between did run. `keeps_logits`
    hands every step's raw logits to the clients. `poisons` fills everything nobody may read with
    NaN. Failures of an operation end that stream alone and are reported in the outcome.
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        identity: Identity,
        clients: Clients,
        *,
        context: Context | None = None,
        ahead: int = 0,
        keeps_logits: bool = False,
    ) -> None:
        self.decoder = decoder
        self.arena = arena
        self.identity = identity
        self.clients = clients
        self.context = context or Context(Ops(), identity.safeguards)
        if identity.is_compiled and self.context.compiled is None:
            self.context.compiled = {}
        if identity.has_kernels and self.context.kernels is None:
            self.context.kernels = OwnKernels()
        self.blobs = Blobs(arena)
        self._ahead = ahead
        self._keeps_logits = keeps_logits
        self._live: dict[int, _Live] = {}
        self._cut: dict[tuple[int, int], Blob] = {}
        self._do = {
            End: self._end,
            Drop: self._drop,
            Resume: self._move,
            Move: self._move,
            Pause: self._pause,
            Admit: self._admit,
            Restore: self._restore,
            Capture: self._capture,
        }
        if self.context.poisons:
            for slot, rows in enumerate(arena.plan.slot_rows):
                start = sum(arena.plan.slot_rows[:slot])
                if start + rows <= arena.plan.num_rows:
                    arena.poison(Place(slot, start, rows, rows))

    # ---- the four methods --------------------------------------------------------------------

    def facts(self, round_index: int) -> list[Fact]:
        """Return arrivals and cancels visible up to this round."""
        return self.clients.facts(round_index)

    def wait(self) -> bool:
        """Block until a client comes; False when none ever will."""
        return self.clients.wait()

    def close(self) -> None:
        """Forget every stream and blob."""
        self._live.clear()
        self._cut.clear()
        self.blobs = Blobs(self.arena)

    def run(self, round: Round) -> Outcome:
        """Carry out the operations in order, then up to `repeat` decode steps."""
        failed = self._operate(round)
        dead = {_id_at(round, position) for position, _ in failed}
        lanes = [self._live[i] for i in round.decode if i not in dead]
        most = 1 if failed else min(round.repeat, self.clients.rounds_free(round))
        try:
            rounds, stopped, short = self._decode(round, lanes, most)
        except (RuntimeError, MemoryError) as error:
            reason = f"decode failed: {error}"
            failed += [(len(round.ops) + round.decode.index(lane.id), reason) for lane in lanes]
            return Outcome(1, failed=tuple(failed))
        produced = tuple((i, rounds - 1) for i in short)
        return Outcome(rounds, produced, tuple(stopped), tuple(failed))

    # ---- operations --------------------------------------------------------------------------

    def _operate(self, round: Round) -> list[tuple[int, str]]:
        """Return the operations that failed; the rest of their streams' operations is skipped."""
        failed: list[tuple[int, str]] = []
        dead: set[int] = set()
        self._cut = {}
        for position, op in enumerate(round.ops):
            owner = _owner(op)
            if owner in dead and not isinstance(op, End):
                continue
            try:
                if isinstance(op, Grant):
                    self._grant(op, 0, _cuts(round, op))
                else:
                    self._do[type(op)](op)
            except (QwispError, RuntimeError, MemoryError) as error:
                failed.append((position, str(error).partition("\n")[0]))
                if owner is not None:
                    dead.add(owner)
        return failed

    def _end(self, op: End) -> None:
        stream = self._live.pop(op.id, None)
        # The place is the scheduler's word: after a failed move the rows this stream still has
        # here may be a newcomer's already.
        if stream is not None and op.place is not None and self.context.poisons:
            self.arena.poison(op.place)
        self.clients.ended(op)

    def _drop(self, op: Drop) -> None:
        self.blobs.drop(op.key)

    def _admit(self, op: Admit) -> None:
        self._live[op.id] = _Live(op.id, self.clients.request(op.id), op.place)
        if self.context.poisons:
            self.arena.poison(op.place)
        self.arena.open(op.place)
        self._live[op.id].token = self._live[op.id].request.prompt[op.prompt_tokens - 1]

    def _move(self, op: Move | Resume) -> None:
        stream = self._live[op.id]
        raw = self.identity.safeguards.raw_rings
        self.arena.move(op.source, op.target, stream.length, raw_rings=raw)
        stream.place = op.target
        if self.context.poisons and op.source.slot != op.target.slot:
            self.arena.poison(op.source)

    def _pause(self, op: Pause) -> None:
        """Nothing to do: a paused stream keeps its rows and stands in no decode."""

    def _restore(self, op: Restore) -> None:
        stream = self._live[op.id]
        self.blobs.restore(op.key, op.num_tokens, stream.place)
        stream.length = op.num_tokens

    def _capture(self, op: Capture) -> None:
        stream = self._live[op.id]
        blob = self._cut.pop((op.id, op.num_tokens), None)
        if blob is None and stream.length == op.num_tokens:
            blob = self.blobs.take(stream.place, op.num_tokens)
        if blob is None:
            raise BlobUnusable(
                f"stream {op.id} has {stream.length} tokens, not {op.num_tokens}",
                "capture a prefix in the round that reaches it",
            )
        self.blobs.keep(op.key, blob)

    def _grant(self, op: Grant, repeat: int, cuts: list[int]) -> None:
        """Prefill a grant's tokens window by window; stop at cuts to save what a blob needs."""
        stream = self._live[op.id]
        stop = op.start + (repeat + 1) * op.num_tokens
        while stream.length < stop:
            end = min([cut for cut in cuts if cut > stream.length] + [stop])
            window = self._window(stream.place, stream.length, end)
            tokens = np.zeros(window.num_rows, np.int32)
            tokens[window.rows] = stream.request.prompt[window.first : window.end]
            self.context.owners = tuple(
                (t - window.origin, stream.id, t) for t in range(window.first, window.end)
            )
            self.decoder.prefill(self.context, mx.array(tokens), self.arena, window)
            stream.length = window.end
            if window.end in cuts:
                self._cut[op.id, window.end] = self.blobs.take(stream.place, window.end)

    def _window(self, place: Place, first: int, end: int) -> Window:
        chunk = self.identity.chunk_tokens
        if not self.identity.safeguards.aligned_windows:
            end = min(end, first + chunk)
            return Window(place, first, end - first, first, end)
        origin = first // chunk * chunk
        return Window(place, origin, chunk, first, min(end, origin + chunk))

    # ---- decoding ----------------------------------------------------------------------------

    def _decode(
        self, round: Round, lanes: list[_Live], most: int
    ) -> tuple[int, list[int], list[int]]:
        """Return (rounds that ran, ids that stopped, ids whose last step came after their stop)."""
        grants = [op for op in round.ops if isinstance(op, Grant)]
        waiting: _Issued | None = None
        for n in range(most):
            for op in grants if n else ():
                self._grant(op, n, [])
            issued = self._issue(lanes, waiting) if lanes else None
            if waiting is not None:
                stopped = self._read(waiting, ())
                if stopped:
                    return n + 1, stopped + self._read(issued, stopped), stopped
            waiting = issued
            if waiting is not None and (not self._ahead or n + 1 == most):
                stopped = self._read(waiting, ())
                waiting = None
                if stopped:
                    return n + 1, stopped, []
        return most, [], []

    def _issue(self, lanes: list[_Live], before: _Issued | None) -> _Issued:
        """Start one decode step; its tokens come from the step before where that is not read."""
        width = self.identity.width if self.identity.safeguards.fixed_width else len(lanes)
        step = Step(tuple(Lane(lane.place, lane.length) for lane in lanes), width)
        if before is None:
            own = [lane.token for lane in lanes]
            tokens = mx.array(own + [0] * (width - len(own)), mx.int32)
        else:
            tokens = before.tokens
        self.context.owners = tuple((row, a.id, a.length) for row, a in enumerate(lanes))
        logits = self.decoder.decode(self.context, tokens, self.arena, step)
        for lane in lanes:
            lane.length += 1
        rules = [lane.request.sampling for lane in lanes]
        chosen = choose(logits, rules, [lane.length for lane in lanes])
        kept = logits if self._keeps_logits else chosen
        mx.async_eval(chosen, kept, self.arena.arrays)
        return _Issued(lanes, chosen, kept)

    def _read(self, issued: _Issued, ended: tuple[int, ...] | list[int]) -> list[int]:
        """Hand a step's tokens to the clients; return the ids whose reply ended by itself."""
        tokens = issued.tokens.tolist()
        words = raw_words(issued.logits) if self._keeps_logits else None
        stopped = []
        for row, lane in enumerate(issued.lanes):
            if lane.id in ended:
                continue
            lane.token = tokens[row]
            self.clients.token(lane.id, lane.token, None if words is None else words[row])
            if lane.token in lane.request.stop_tokens:
                stopped.append(lane.id)
        return stopped


def _owner(op: Operation) -> int | None:
    return None if isinstance(op, Drop) else op.id


def _id_at(round: Round, position: int) -> int | None:
    return _owner(round.ops[position])


def _cuts(round: Round, grant: Grant) -> list[int]:
    """Return the tokens at which this round saves a prefix of the grant's stream."""
    mine = [op for op in round.ops if isinstance(op, Capture) and op.id == grant.id]
    return [op.num_tokens for op in mine if op.num_tokens > grant.start]
