"""Attention the stock way: one call for all lanes, padded to the longest. Never in strict mode."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import Ring, Rows
from qwisp.engine.model.attention import KeyRange
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.step import Lane, Step

Readable = Callable[[Rows | Ring, Lane, int], np.ndarray | None]


def stock_decode(
    ops: Ops, q: mx.array, cache: Rows | Ring, step: Step, readable: Readable
) -> list[mx.array]:
    """Return `[H, D]` per live lane; q is `[W, H, D]` in fp32, already scaled."""
    ranges = [cache.keys(lane.place, lane.position + 1) for lane in step.lanes]
    longest = max(keys.count for keys in ranges)
    mask = np.zeros((len(ranges), 1, 1, longest), bool)
    for i, (lane, keys) in enumerate(zip(step.lanes, ranges, strict=True)):
        seen = readable(cache, lane, keys.count)
        mask[i, ..., : keys.count] = True if seen is None else seen
    k = mx.stack([_padded(keys.k, keys, longest) for keys in ranges])
    v = mx.stack([_padded(keys.v, keys, longest) for keys in ranges])
    out = ops.attention(q[: len(ranges), :, None], k, v, scale=1.0, mask=mx.array(mask))
    return [out[i, :, 0] for i in range(len(ranges))]


def stock_prefill(ops: Ops, q: mx.array, keys: KeyRange, allowed: np.ndarray) -> mx.array:
    """Return `[H, C, D]` for a window of queries, q `[H, C, D]` in fp32, already scaled."""
    k, v = (_padded(x, keys, keys.count)[None] for x in (keys.k, keys.v))
    return ops.attention(q[None], k, v, scale=1.0, mask=mx.array(allowed))[0]


def _padded(x: mx.array, keys: KeyRange, num_rows: int) -> mx.array:
    rows = x[:, keys.base : keys.base + keys.count].astype(mx.float32)
    return mx.pad(rows, [(0, 0), (0, num_rows - keys.count), (0, 0)])
