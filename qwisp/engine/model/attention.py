"""Attention with one definition: blocks of 256 keys, fp32 partials, combined in block order.

For one lane, keys and values are `nb` blocks of 256 (the last one zero-padded, masked -inf):
`s = q k^T`; per block `m = max s`, `p = exp(s - m)`, `l = sum p`, `o = p v`; then `M = max m`,
`w = exp(m - M)`, and the result is `sum w o / sum w l`, both sums from block 0 on. Every shape
depends on the lane's own length alone. `kernels/sdpa_rows/reference.py` states the same in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import BLOCK, KeyRange
from qwisp.engine.model.ops import Ops


class Partial(NamedTuple):
    """Per block and query: the maximum, the sum of weights and the weighted values."""

    m: mx.array
    l: mx.array  # noqa: E741  the letter of the formula
    o: mx.array


def partials(ops: Ops, q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> Partial:
    """Return the partials of scaled fp32 queries `[..., M, D]` over blocks `[..., 256, D]`.

    `mask` is boolean, True where a key may be read. A block in which a query reads nothing gets
    `m = -inf` and weighs nothing.
    """
    s = ops.batched_product(q, k.swapaxes(-1, -2))
    if mask is not None:
        s = mx.where(mask, s, -mx.inf)
    m = mx.max(s, axis=-1, keepdims=True)
    p = mx.exp(s - mx.where(m == -mx.inf, 0.0, m))
    return Partial(m, ops.row_sum(p), ops.batched_product(p, v))


def combine(parts: list[Partial]) -> mx.array:
    """Return the weighted mean over all blocks; the block axis is 1 of every partial.

    The maximum is exact whatever its order; the two sums run block by block from block 0.
    """
    top = mx.max(mx.concatenate([part.m for part in parts], axis=1), axis=1, keepdims=True)
    values = weights = None
    for part in parts:
        w = mx.exp(part.m - top)
        wo, wl = w * part.o, w * part.l
        for j in range(w.shape[1]):
            values = wo[:, j] if values is None else values + wo[:, j]
            weights = wl[:, j] if weights is None else weights + wl[:, j]
    return values / weights


def decode_lane(ops: Ops, q: mx.array, keys: KeyRange, allowed: np.ndarray | None) -> mx.array:
    """Return `[H, D]` in fp32 for one query per head, q `[H, D]` already scaled.

    `allowed` is None where every row may be read (full attention), else a boolean per row.
    """
    groups, dim = keys.k.shape[0], q.shape[-1]
    q = q.astype(mx.float32).reshape(groups, 1, -1, dim)
    full = keys.count // BLOCK if allowed is None else 0
    parts = []
    if full:
        parts.append(partials(ops, q, *keys.blocks(0, full), None))
    rest = -(-keys.count // BLOCK) - full
    if rest:
        readable = np.zeros(rest * BLOCK, bool)
        readable[: keys.count - full * BLOCK] = True if allowed is None else allowed
        mask = mx.array(readable.reshape(rest, 1, BLOCK))
        parts.append(partials(ops, q, *keys.blocks(full, rest), mask))
    return combine(parts).reshape(-1, dim)


def prefill_window(
    ops: Ops, q: mx.array, keys: KeyRange, num_blocks: int, allowed: np.ndarray
) -> mx.array:
    """Return `[H, C, D]` in fp32 for a window of queries, q `[H, C, D]` already scaled.

    `num_blocks` depends on the window's index alone; `allowed` is boolean `[C, num_blocks * 256]`.
    One block at a time, so that scores never need more than `[H, C, 256]`.
    """
    groups, dim = keys.k.shape[0], q.shape[-1]
    q = q.astype(mx.float32).reshape(groups, -1, q.shape[1], dim)
    parts = []
    for j in range(num_blocks):
        k, v = keys.blocks(j, 1)
        mask = allowed[:, j * BLOCK : (j + 1) * BLOCK]
        part = partials(ops, q, k, v, None if mask.all() else mx.array(mask))
        parts.append(Partial(*(x[:, None] for x in part)))
    return combine(parts).reshape(-1, q.shape[2], dim)
