"""`MlxExecutor`: carries out the scheduler's rounds on real arrays. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.arena import Arena
from qwisp.engine.cache.blobs import Blob, Blobs, BlobUnusable
from qwisp.engine.clients import ClientFailed, Clients, TokenRequest, ask_client
from qwisp.engine.model.decoder import Decoder
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.own_kernels import OwnKernels
from qwisp.engine.model.step import Context, Lane, Step, Window
from qwisp.engine.sampling import GREEDY, DrawFailed, choose
from qwisp.engine.spec.dtypes import raw_words
from qwisp.engine.spec.identity import Identity
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

FAILURES = (QwispError, RuntimeError, MemoryError)
"""What an operation or a decode step may raise; anything else is a bug and ends the run."""


@dataclass(slots=True)
class _Live:
    """A stream: `length` tokens lie in its place, `token` comes next."""

    id: int
    request: TokenRequest
    place: Place
    length: int = 0
    token: int = 0


@dataclass(slots=True)
class _Issued:
    """A decode step whose result was not looked at yet."""

    lanes: list[_Live]
    tokens: mx.array
    logits: mx.array
    faults: dict[int, str]


@dataclass(slots=True)
class _Tally:
    """What came of a run of decode steps, by request: tokens handed over, stops, failures."""

    got: dict[int, int]
    stopped: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether somebody's reply ended, so that the scheduler must be told."""
        return bool(self.stopped or self.failed)

    def has_ended(self, request_id: int) -> bool:
        """Whether the reply is over, one way or the other."""
        return request_id in self.stopped or request_id in self.failed

    def produced(self, rounds: int) -> tuple[tuple[int, int], ...]:
        """Return who did not get a token a round, nor lost just the last one by failing."""
        usual = {i: rounds - (i in self.failed) for i in self.got}
        return tuple((i, count) for i, count in self.got.items() if count != usual[i])


class MlxExecutor:
    """Runs a decoder over an arena, one round at a time.

    `ahead=1` issues a repeated decode step before the one before it was read; a stop is then
    reported at most one round later, and the step that ran in between did run. `keeps_logits`
    hands every step's raw logits to the clients. `poisons` fills everything nobody may read with
    NaN. What an operation, a draw or a client's own code raises ends that stream alone and is
    reported in the outcome; a decode step that fails ends those that were in it, and no others.
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
            num_rows = arena.plan.num_rows
            for slot in range(len(arena.plan.slot_rows)):
                arena.poison(Place(slot, 0, num_rows, num_rows))

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
        most = min(round.repeat, self.clients.rounds_free(round))
        tally = _Tally({lane.id: 0 for lane in lanes})
        rounds = self._decode(round, lanes, most, tally, failed)
        num_ops = len(round.ops)
        failed += [
            (num_ops + at, tally.failed[i])
            for at, i in enumerate(round.decode)
            if i in tally.failed
        ]
        return Outcome(rounds, tally.produced(rounds), tuple(tally.stopped), tuple(failed))

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
            except FAILURES as error:
                failed.append((position, _first_line(error)))
                if owner is not None:
                    dead.add(owner)
        return failed

    def _end(self, op: End) -> None:
        stream = self._live.pop(op.id, None)
        # The place is the scheduler's word: after a failed move the rows this stream still has
        # here may be a newcomer's already.
        if stream is not None and op.place is not None and self.context.poisons:
            self.arena.poison(op.place)
        ask_client(lambda: self.clients.ended(op))

    def _drop(self, op: Drop) -> None:
        self.blobs.drop(op.key)

    def _admit(self, op: Admit) -> None:
        request = ask_client(lambda: self.clients.request(op.id))
        if len(request.prompt) != op.prompt_tokens:
            raise ClientFailed(
                f"the prompt has {len(request.prompt)} tokens, {op.prompt_tokens} were announced",
                "announce and hand over the same prompt",
            )
        vocab = self.decoder.spec.vocab
        if min(request.prompt) < 0 or max(request.prompt) >= vocab:
            worst = next(token for token in request.prompt if not 0 <= token < vocab)
            raise ClientFailed(f"the prompt holds token {worst}", f"use 0 to {vocab - 1:,}")
        self._live[op.id] = _Live(op.id, request, op.place, token=request.prompt[-1])
        if self.context.poisons:
            self.arena.poison(op.place)
        self.arena.open(op.place)

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
        self,
        round: Round,
        lanes: list[_Live],
        most: int,
        tally: _Tally,
        failed: list[tuple[int, str]],
    ) -> int:
        """Return the rounds that ran: those up to the first in which a reply ended, or all.

        What fails in a repeat ends the run after that very round, which the others finish.
        """
        unread: list[_Issued] = []
        rounds = 0
        while rounds < most and not (failed and rounds) and not tally.is_over:
            if rounds:
                failed += self._grant_again(round, rounds)
            rounds += 1
            broken = ""
            try:
                if lanes:
                    unread.append(self._issue(lanes, unread[-1] if unread else None))
            except FAILURES as error:
                broken = f"decode failed: {_first_line(error)}"
            is_last = bool(rounds == most or failed or broken or not self._ahead)
            while len(unread) > (0 if is_last or tally.is_over else 1):
                try:
                    self._read(unread.pop(0), tally)
                except FAILURES as error:
                    broken = broken or f"decode failed: {_first_line(error)}"
                    unread.clear()
            if broken:  # a step is one for all of its lanes: there is nobody to single out
                ids = [lane.id for lane in lanes if not tally.has_ended(lane.id)]
                tally.failed.update(dict.fromkeys(ids, broken))
        return rounds

    def _grant_again(self, round: Round, repeat: int) -> list[tuple[int, str]]:
        """Prefill the grants' next part; return those that failed."""
        failed = []
        for position, op in enumerate(round.ops):
            if isinstance(op, Grant):
                try:
                    self._grant(op, repeat, [])
                except FAILURES as error:
                    failed.append((position, _first_line(error)))
        return failed

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
        chosen, faults = _chosen(logits, lanes)
        kept = logits if self._keeps_logits else chosen
        mx.async_eval(chosen, kept, self.arena.arrays)
        return _Issued(lanes, chosen, kept, faults)

    def _read(self, issued: _Issued, tally: _Tally) -> None:
        """Hand a step's tokens to the clients whose replies go on; count what came of it."""
        tokens = issued.tokens.tolist()
        words = raw_words(issued.logits) if self._keeps_logits else None
        for row, lane in enumerate(issued.lanes):
            if tally.has_ended(lane.id):
                continue
            if row in issued.faults:
                tally.failed[lane.id] = issued.faults[row]
                continue
            lane.token = tokens[row]
            own = None if words is None else words[row]
            try:
                ask_client(lambda lane=lane, own=own: self.clients.token(lane.id, lane.token, own))
            except ClientFailed as error:
                tally.failed[lane.id] = error.what
                continue
            tally.got[lane.id] += 1
            if lane.token in lane.request.stop_tokens:
                tally.stopped.append(lane.id)


def _chosen(logits: mx.array, lanes: list[_Live]) -> tuple[mx.array, dict[int, str]]:
    """Return the next tokens, and by row why a lane's own draw failed: that row's is no token."""
    rules = [lane.request.sampling for lane in lanes]
    positions = [lane.length for lane in lanes]
    faults: dict[int, str] = {}
    while True:
        try:
            return choose(logits, rules, positions), faults
        except DrawFailed as error:
            faults[error.row] = error.what
            rules[error.row] = GREEDY


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _owner(op: Operation) -> int | None:
    return None if isinstance(op, Drop) else op.id


def _id_at(round: Round, position: int) -> int | None:
    return _owner(round.ops[position])


def _cuts(round: Round, grant: Grant) -> list[int]:
    """Return the tokens at which this round saves a prefix of the grant's stream."""
    mine = [op for op in round.ops if isinstance(op, Capture) and op.id == grant.id]
    return [op.num_tokens for op in mine if op.num_tokens > grant.start]
