"""What the runs of a certificate exercised, seen where the decoder is called, and what they missed.

*Identical* is said only of what was reached: streams of five blocks and more (two commute, and a
third with few keys in it seldom tells an order), rings that wrapped and then moved and were
restored, experts at a size that stock mixtures sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx

from qwisp.engine.cache.arena import Arena
from qwisp.engine.cache.buffers import BLOCK, Ring
from qwisp.engine.model.decoder import Decoder
from qwisp.engine.model.ffn import SORT_FROM
from qwisp.engine.model.step import Context, Step, Window
from qwisp.engine.spec.decoder_spec import DecoderSpec, DenseFfn
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

MIN_BLOCKS = 5
"""Two blocks commute: a wrong order shows from three on."""


@dataclass(slots=True)
class RingUse:
    """Streams that wrapped a whole ring (window + C rows), and moves and restores after that."""

    wrapped: set[int] = field(default_factory=set)
    moved: int = 0
    restored: int = 0


class Missing(NamedTuple):
    """Something the runs did not reach: `ask` is what would."""

    what: str
    why: str
    ask: str

    def __str__(self) -> str:
        return f"{self.what}: not exercised: {self.why}; ask {self.ask}"


@dataclass(slots=True)
class Evidence:
    """What was reached, over all runs.

    `live` holds how many lanes a step had, `widths` how many rows. `expert_indices` is the most
    (live lane, chosen expert) pairs of a step, `equal_rows` the rows of attention that were held
    against their definition.
    """

    longest_tokens: int = 0
    live: set[int] = field(default_factory=set)
    widths: set[int] = field(default_factory=set)
    moves: int = 0
    restores: int = 0
    expert_indices: int = 0
    defined_rows: int = 0
    rings: dict[int, RingUse] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Blocks of 256 keys that the longest stream began."""
        return -(-self.longest_tokens // BLOCK)

    def as_dict(self) -> dict[str, Any]:
        """Return the same for JSON and receipts."""
        rings = {
            str(window): {"wrapped": len(use.wrapped), "moved": use.moved, "restored": use.restored}
            for window, use in sorted(self.rings.items())
        }
        return {
            "longest_tokens": self.longest_tokens,
            "blocks": self.blocks,
            "live": sorted(self.live),
            "widths": sorted(self.widths),
            "moves": self.moves,
            "restores": self.restores,
            "expert_indices": self.expert_indices,
            "defined_rows": self.defined_rows,
            "rings": rings,
        }

    def lines(self) -> Iterator[str]:
        """Yield what was exercised, for people."""
        widths = ", ".join(map(str, sorted(self.widths)))
        yield f"longest stream {self.longest_tokens:,} tokens, {self.blocks} blocks of {BLOCK}"
        yield f"steps of {min(self.live)} to {max(self.live)} lanes in {widths} rows"
        yield f"{self.moves} moves, {self.restores} restores"
        if self.expert_indices:
            yield f"{self.expert_indices} expert indices a step (mlx-lm sorts from {SORT_FROM})"
        for window, use in sorted(self.rings.items()):
            yield (
                f"window {window:,}: {len(use.wrapped)} streams wrapped their ring, "
                f"{use.moved} moves and {use.restored} restores after that"
            )
        if self.defined_rows:
            yield f"{self.defined_rows:,} rows of attention held against their definition"

    def missing(self, spec: DecoderSpec, chunk_tokens: int, max_new: int) -> tuple[Missing, ...]:
        """Return what a model of `spec` has and the runs did not reach."""
        found = []
        kinds = {type(block.layer) for block in spec.blocks}
        if kinds & {FullAttention, SlidingWindow} and self.blocks < MIN_BLOCKS:
            name = "full attention" if FullAttention in kinds else "sliding window"
            why = f"{self.blocks} of {MIN_BLOCKS} blocks of {BLOCK} keys"
            found.append(Missing(name, why, f"--tokens {5 * BLOCK}"))
        if GatedDelta in kinds and self.longest_tokens <= chunk_tokens:
            why = f"longest stream {self.longest_tokens} tokens, one window of prefill"
            found.append(Missing("gated delta", why, f"--tokens {5 * BLOCK}"))
        for window in sorted(
            {b.layer.window_tokens for b in spec.blocks if isinstance(b.layer, SlidingWindow)}
        ):
            use = self.rings.get(window, RingUse())
            name = f"sliding window {window:,}"
            if not use.wrapped:
                why = f"longest stream {self.longest_tokens:,} tokens"
            elif not (use.moved and use.restored):
                why = f"{use.moved} moves and {use.restored} restores after a ring wrapped"
            else:
                continue
            needed = tokens_to_wrap(window, chunk_tokens, max_new)
            is_long = self.longest_tokens + 1 >= needed
            found.append(Missing(name, why, "--max-new 48" if is_long else f"--tokens {needed}"))
        has_experts = any(not isinstance(block.ffn, DenseFfn) for block in spec.blocks)
        if has_experts and self.expert_indices < SORT_FROM:
            why = f"{self.expert_indices} indices a step, mlx-lm sorts from {SORT_FROM}"
            found.append(Missing("experts", why, "--width 16 or more"))
        if not self.moves:
            found.append(Missing("moves", "no stream outgrew its session", "--max-new 48"))
        if not self.restores:
            found.append(Missing("restores", "no saved prefix was used", "--tokens 1300"))
        return tuple(found)


def tokens_to_wrap(window: int, chunk_tokens: int, max_new: int) -> int:
    """Return the longest stream that wraps a ring of window + C rows, then moves and is restored.

    In hundreds, because people type it.

    >>> tokens_to_wrap(4096, 64, 48)
    4300
    """
    return -(-(window + 2 * chunk_tokens + max_new) // 100) * 100


class Watched:
    """A decoder that notes what it is asked to do, and passes it on."""

    def __init__(self, decoder: Decoder, evidence: Evidence, *, is_restoring: bool = False) -> None:
        self.decoder = decoder
        self.spec = decoder.spec
        self.evidence = evidence
        self.is_restoring = is_restoring
        self.now: tuple[Arena, Step | Window] | None = None
        self._seen: dict[int, int] = {}
        tops = [getattr(block.ffn, "top_k", 0) for block in decoder.spec.blocks]
        self._top_k = max(tops)

    def decode(self, c: Context, tokens: mx.array, arena: Arena, step: Step) -> mx.array:
        """Note rows, lanes and places, then decode."""
        found = self.evidence
        found.live.add(step.num_live)
        found.widths.add(tokens.shape[0])
        found.expert_indices = max(found.expert_indices, step.num_live * self._top_k)
        for (_, request_id, position), lane in zip(c.owners, step.lanes, strict=True):
            self._note(arena, request_id, lane.place.slot, position, position + 1)
        self.now = arena, step
        return self.decoder.decode(c, tokens, arena, step)

    def prefill(self, c: Context, tokens: mx.array, arena: Arena, window: Window) -> None:
        """Note the window's place and tokens, then prefill."""
        self._note(arena, c.owners[0][1], window.place.slot, window.first, window.end)
        self.now = arena, window
        self.decoder.prefill(c, tokens, arena, window)

    def _note(self, arena: Arena, request_id: int, slot: int, held: int, end: int) -> None:
        """Note a stream of `held` tokens in a slot that goes on to `end`."""
        found = self.evidence
        found.longest_tokens = max(found.longest_tokens, end)
        before = self._seen.get(request_id, slot)
        self._seen[request_id] = slot
        has_come = before != slot and held > 0
        if has_come and self.is_restoring:
            found.restores += 1
        elif has_come:
            found.moves += 1
        rings = {ring.window_tokens: ring for ring in arena.buffers if isinstance(ring, Ring)}
        for window, ring in rings.items():
            whole = window + arena.plan.chunk_tokens
            use = found.rings.setdefault(window, RingUse())
            if ring.ring_rows[slot] == whole < end:
                use.wrapped.add(request_id)
            if has_come and held > whole == ring.ring_rows[before]:
                use.restored += self.is_restoring
                use.moved += not self.is_restoring
