"""Is attention what its definition says? Rows of a real run, held against it bit for bit.

Equal bits alone and in company do not show a rule that is broken everywhere alike: scores rounded
to a narrower type, or sums rescaled on the way. So the definition (`attention`) is stated here once
more, row by row and one operation after another, from the queries and the cache of the run; where
own kernels decode, their numpy definition is taken. Products and row sums are the backend's, in the
shapes that the definition prescribes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.arena import Arena
from qwisp.engine.cache.buffers import BLOCK, Ring, Rows
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.step import Lane, Step, Window
from qwisp.engine.proof.certificate_evidence import Watched
from qwisp.engine.proof.kernel_check import definition
from qwisp.engine.proof.trail import ulps
from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.spec.layers import SlidingWindow


class Deviation(NamedTuple):
    """The first row that is not its definition: the position that asked, by how much, and where."""

    position: int
    ulp: int
    operation: str


class DefinitionTap:
    """A tap over a run of one stream that compares a layer of each shape with the definition.

    `rows` counts what was compared, `first` is the first deviation. With own kernels
    (`has_kernels`) decoded rows are compared at block boundaries and at first only: numpy takes
    its time.
    """

    def __init__(self, spec: DecoderSpec, ops: Ops) -> None:
        self.watched: Watched | None = None
        self.has_kernels = False
        self.rows = 0
        self.first: Deviation | None = None
        self._ops = ops
        self._queries: mx.array | None = None
        self._decoding: set[int] = set()
        first: dict[tuple, int] = {}
        for index, block in enumerate(spec.blocks):
            if block.attention is not None:
                first.setdefault((block.layer, block.attention.heads), index)
        self._windows = {
            index: layer.window_tokens if isinstance(layer, SlidingWindow) else None
            for (layer, _), index in first.items()
        }

    def __call__(self, name: str, value: mx.array) -> None:
        """Keep the queries of a chosen layer, and compare what came of them."""
        if not name.endswith((".queries", ".attention")) or self.first is not None:
            return
        index = int(name.partition("layers.")[2].split(".")[0])
        if index not in self._windows:
            return
        if name.endswith(".queries"):
            self._queries = value
            return
        assert self.watched is not None
        assert self.watched.now is not None
        assert self._queries is not None
        arena, rows = self.watched.now
        if isinstance(rows, Step):
            self._decoded(name, index, arena, rows.lanes[0], value)
        else:
            self._prefilled(name, index, arena, rows, value)

    def _decoded(self, name: str, index: int, arena: Arena, lane: Lane, out: mx.array) -> None:
        p = lane.position
        is_first = index not in self._decoding
        self._decoding.add(index)
        if self.has_kernels and not is_first and p % BLOCK not in (0, 1, BLOCK - 1):
            return
        assert self._queries is not None
        q = self._queries[0]
        keys = _Keys(arena.by_block[index], lane.place, p + 1, self._windows[index])
        if self.has_kernels:
            expected = mx.array(_by_kernel(q, keys))
        else:
            expected = _by_blocks(self._ops, q[:, None], keys, np.array([p]), None)[:, 0]
        self._compare(name, [p], out[:1], expected.reshape(1, -1))

    def _prefilled(
        self, name: str, index: int, arena: Arena, window: Window, out: mx.array
    ) -> None:
        assert self._queries is not None
        q = mx.contiguous(self._queries.swapaxes(0, 1))
        reach = window.origin + window.num_rows
        cache, width = arena.by_block[index], self._windows[index]
        if width is not None and isinstance(cache, Ring):
            reach = min(reach, width + window.num_rows)
        keys = _Keys(cache, window.place, window.end, width)
        asked = np.arange(window.origin, window.origin + window.num_rows)
        expected = _by_blocks(self._ops, q, keys, asked, -(-reach // BLOCK))
        expected = expected.swapaxes(0, 1).reshape(window.num_rows, -1)[window.rows]
        positions = list(range(window.first, window.end))
        self._compare(name, positions, out[window.rows], expected)

    def _compare(self, name: str, positions: list[int], out: mx.array, expected: mx.array) -> None:
        self.rows += len(positions)
        ours, theirs = (np.array(mx.contiguous(x).view(mx.uint32)) for x in (out, expected))
        for position, a, b in zip(positions, ours, theirs, strict=True):
            if not np.array_equal(a, b):
                self.first = Deviation(position, ulps(a, b), name)
                return


class _Keys:
    """Keys and values of a stream of `num_tokens`, `[G, n, D]` in fp32, and whose they are.

    `held` `[n]` is the position that lies in each row.
    """

    def __init__(self, cache: Rows | Ring, place, num_tokens: int, window: int | None) -> None:
        if isinstance(cache, Ring):
            size = cache.ring_rows[place.slot]
            base, self.count = cache.offsets[place.slot], min(size, num_tokens)
            held = np.zeros(self.count, int)
            held[np.arange(num_tokens) % size] = np.arange(num_tokens)  # the last to write holds it
        else:
            base, self.count = place.start_row, num_tokens
            held = np.arange(num_tokens)
        self.held, self.window = held, window
        rows = slice(base, base + self.count)
        self.k, self.v = (x[:, rows].astype(mx.float32) for x in (cache.k, cache.v))

    def seen_from(self, positions: np.ndarray) -> np.ndarray:
        """Return `[queries, n]`: the row may be read from there."""
        seen = self.held[None] <= positions[:, None]
        if self.window is not None:
            seen &= self.held[None] > positions[:, None] - self.window
        return seen


def _by_kernel(q: mx.array, keys: _Keys) -> np.ndarray:
    """Return `[H, D]` by the numpy definition of the kernel; q is `[H, D]`."""
    stated = definition("sdpa_rows/reference.py")
    seen = keys.seen_from(np.array([keys.held.max()]))
    return stated.sdpa_rows(
        np.array(q)[None],
        np.array(keys.k),
        np.array(keys.v),
        np.zeros(1, int),
        np.array([keys.count]),
        seen,
    )[0]


def _by_blocks(
    ops: Ops, q: mx.array, keys: _Keys, positions: np.ndarray, num_blocks: int | None
) -> mx.array:
    """Return `[H, T, D]` for T queries q `[H, T, D]` at those positions.

    A window of prefill takes its `num_blocks` blocks one product each. A decoded row (None) takes
    all full blocks in one product and the begun one in another; in a ring, all in one.
    """
    groups, dim = keys.k.shape[0], q.shape[-1]
    is_row = num_blocks is None
    count = -(-keys.count // BLOCK) if num_blocks is None else num_blocks
    missing = count * BLOCK - keys.count
    k, v = keys.k, keys.v
    if missing > 0:
        k, v = (mx.pad(x, [(0, 0), (0, missing), (0, 0)]) for x in (k, v))
    k, v = (x[:, : count * BLOCK].reshape(groups, count, BLOCK, dim) for x in (k, v))
    seen = np.zeros((positions.size, count * BLOCK), bool)
    known = min(keys.count, count * BLOCK)
    seen[:, :known] = keys.seen_from(positions)[:, :known]
    full = keys.count // BLOCK if is_row and keys.window is None else 0
    cuts = [0, full, count] if is_row else list(range(count + 1))
    q = q.reshape(groups, 1, -1, dim) if is_row else q.reshape(groups, -1, q.shape[1], dim)
    tops, sums, values = [], [], []
    for a, b in pairwise(cuts):
        if a == b:
            continue
        readable = seen[:, a * BLOCK : b * BLOCK].reshape(positions.size, b - a, 1, BLOCK)
        mask = mx.array(readable.transpose(2, 1, 0, 3) if is_row else readable[:, 0, 0])
        s = ops.batched_product(q, k[:, a:b].swapaxes(-1, -2))
        s = mx.where(mask, s, -mx.inf)
        m = mx.max(s, axis=-1, keepdims=True)
        p = mx.exp(s - mx.where(m == -mx.inf, 0.0, m))
        blocks = range(b - a)
        l, o = ops.row_sum(p), ops.batched_product(p, v[:, a:b])  # noqa: E741
        if is_row:
            tops += [m[:, j] for j in blocks]
            sums += [l[:, j] for j in blocks]
            values += [o[:, j] for j in blocks]
        else:
            tops, sums, values = [*tops, m], [*sums, l], [*values, o]
    top = tops[0]
    for m in tops[1:]:
        top = mx.maximum(top, m)
    total = weight = None
    for m, l, o in zip(tops, sums, values, strict=True):  # noqa: E741  the letters of the formula
        w = mx.exp(m - top)
        total = w * o if total is None else total + w * o
        weight = w * l if weight is None else weight + w * l
    return (total / weight).reshape(-1, positions.size, dim)
