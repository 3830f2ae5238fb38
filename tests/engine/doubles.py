"""Five faulty engines: the real one with one rule of its attention or width broken.

Each is a context manager over the real modules, so whatever runs inside it (a certificate, a
driven run, a checked executor) meets the fault. They are blocked attention in MLX with a mistake
in it: own kernels on a GPU do not pass through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from unittest import mock

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import BLOCK, KeyRange
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model import attention, mixers
from qwisp.engine.model.attention import Partial
from qwisp.engine.model.mixers import Attention
from qwisp.engine.model.ops import Ops


def _single(parts: list[Partial]) -> list[Partial]:
    """Return the same partials with one block in each; the block axis is 1."""
    return [
        Partial(*(x[:, j : j + 1] for x in part)) for part in parts for j in range(part.m.shape[1])
    ]


@contextmanager
def block_order_by_place() -> Iterator[None]:
    """A decoding lane adds its blocks from block `slot mod nb` on.

    Two blocks commute, so a stream of fewer than 513 tokens cannot show it; nor can one that always
    stands in the same place.
    """
    slot = 0
    honest_lane, honest_combine = Attention._lane, attention.combine

    def lane_of(self, c, q, cache, lane):
        nonlocal slot
        slot = lane.place.slot
        try:
            return honest_lane(self, c, q, cache, lane)
        finally:
            slot = 0

    def combine(parts: list[Partial]) -> mx.array:
        blocks = _single(parts)
        turn = slot % len(blocks)
        return honest_combine(blocks[turn:] + blocks[:turn])

    with (
        mock.patch.object(Attention, "_lane", lane_of),
        mock.patch.object(attention, "combine", combine),
    ):
        yield


@contextmanager
def blocks_padded_to_the_longest() -> Iterator[None]:
    """A lane's blocks are filled up with empty ones to as many as its longest neighbour has.

    Empty blocks weigh nothing, so only a product that looks at how many matrices there are (a GPU,
    or hostile kernels) shows it.
    """
    longest = 0
    honest = Attention.decode

    def decode(self, c, x, cache, step):
        nonlocal longest
        counts = [cache.keys(lane.place, lane.position + 1).count for lane in step.lanes]
        longest = -(-max(counts) // BLOCK)
        return honest(self, c, x, cache, step)

    def decode_lane(ops: Ops, q: mx.array, keys: KeyRange, allowed: np.ndarray | None) -> mx.array:
        groups, dim = keys.k.shape[0], q.shape[-1]
        q = q.astype(mx.float32).reshape(groups, 1, -1, dim)
        readable = np.zeros(longest * BLOCK, bool)
        readable[: keys.count] = True if allowed is None else allowed
        mask = mx.array(readable.reshape(longest, 1, BLOCK))
        part = attention.partials(ops, q, *keys.blocks(0, longest), mask)
        return attention.combine([part]).reshape(-1, dim)

    with (
        mock.patch.object(Attention, "decode", decode),
        mock.patch.object(mixers, "decode_lane", decode_lane),
    ):
        yield


@contextmanager
def running_rescale() -> Iterator[None]:
    """Sums are rescaled to a running maximum from block to block, instead of weighed by the last.

    A stream has the same bits alone and in company: they are other bits than the definition's, from
    two blocks on. Only a comparison with the definition shows it.
    """

    def combine(parts: list[Partial]) -> mx.array:
        first, *rest = _single(parts)
        top, weights, values = (x[:, 0] for x in first)
        for part in rest:
            m, l, o = (x[:, 0] for x in part)  # noqa: E741  the letters of the formula
            higher = mx.maximum(top, m)
            old, new = mx.exp(top - higher), mx.exp(m - higher)
            weights, values = weights * old + l * new, values * old + o * new
            top = higher
        return values / weights

    with mock.patch.object(attention, "combine", combine):
        yield


@contextmanager
def bf16_scores() -> Iterator[None]:
    """Scores are rounded to bf16 before the softmax, at any length.

    A stream has the same bits alone and in company; only a comparison with the definition shows it.
    """
    honest = attention.partials

    class Rounding:
        """Ops whose first batched product (the scores) is rounded."""

        def __init__(self, ops: Ops) -> None:
            self.ops, self.calls = ops, 0

        def __getattr__(self, name: str):
            return getattr(self.ops, name)

        def batched_product(self, a: mx.array, b: mx.array) -> mx.array:
            self.calls += 1
            y = self.ops.batched_product(a, b)
            return y.astype(mx.bfloat16).astype(mx.float32) if self.calls == 1 else y

    def partials(ops, q, k, v, mask):
        return honest(Rounding(ops), q, k, v, mask)

    with mock.patch.object(attention, "partials", partials):
        yield


@contextmanager
def wider_from_six_lanes() -> Iterator[None]:
    """A decode step has 16 rows once six lanes live, 8 otherwise.

    A product that looks at its rows (a GPU, or hostile kernels that tell 8 rows from 16) shows it.
    """
    honest = MlxExecutor._issue

    def issue(self, lanes, before):
        kept = self.identity
        if len(lanes) >= 6:
            self.identity = replace(kept, width=max(kept.width, 16))
        try:
            return honest(self, lanes, before)
        finally:
            self.identity = kept

    with mock.patch.object(MlxExecutor, "_issue", issue):
        yield


DOUBLES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "block order by place": block_order_by_place,
    "blocks padded to the longest": blocks_padded_to_the_longest,
    "running rescale": running_rescale,
    "bf16 scores": bf16_scores,
    "wider from six lanes": wider_from_six_lanes,
}
"""Name to fault. Enter one, then run what should notice."""
