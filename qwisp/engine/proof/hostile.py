"""Kernels as unkind as a GPU's, whose order of summation follows the shape. For proofs only.

MLX's CPU kernels give a row the same bits whatever stands beside it, so on a CPU a comparison with
solo passes even for a design that breaks on a GPU. These shims put back what GPU kernels depend on:
a design is proved only under them. Each counts the results it altered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import prod

import mlx.core as mx

from qwisp.engine.model.ops import Ops, QuantizedWeight
from qwisp.errors import BadInput

SHIMS = {
    "products": "plain and quantised products by their rows: 1-7 | 8 | 9-15 | 16-31 | 32 and more",
    "batched": "batched products (of attention blocks) by their number of matrices",
    "blocks": "batched products by how many matrices follow a matrix, as padding adds",
    "sums": "row sums by their number of rows; sums over stock attention's key blocks by batch",
    "attention": "stock attention by key length and by batch",
    "experts": "sorted expert products by the rows of each expert",
    "sorting": "expert products by whether their rows are sorted",
}
"""Shim to what its results depend on."""

_MAX_COUNTED = 200
"""Comparing every result would double the work; so many per shim show that it does something."""


class HostileOps(Ops):
    """MLX's kernels with the chosen shims before them (all of `SHIMS` unless told).

    `long_keys` is the key length from which stock attention takes its other order. Raises
    `BadInput` for an unknown shim.
    """

    def __init__(self, shims: Iterable[str] = SHIMS, *, long_keys: int = 1024) -> None:
        self.shims = frozenset(shims)
        if unknown := self.shims - SHIMS.keys():
            raise BadInput(
                f"shim {sorted(unknown)[0]!r} is not known", f"use some of {', '.join(SHIMS)}"
            )
        self.long_keys = long_keys
        # In the order of `SHIMS`: that of a set changes from process to process.
        self.altered = Counter({shim: 0 for shim in SHIMS if shim in self.shims})

    def product(self, x: mx.array, w: mx.array) -> mx.array:
        """Split the inner dimension by the number of rows."""
        plain = super().product(x, w)
        if "products" not in self.shims:
            return plain
        y = _by_rows(x.shape[0], x.shape[-1], lambda a, b: x[:, a:b] @ w[a:b])
        return self._count("products", plain, y)

    def quantized_product(self, x: mx.array, w: QuantizedWeight) -> mx.array:
        """The same, cut between groups."""
        plain = super().quantized_product(x, w)
        if "products" not in self.shims:
            return plain

        def part(a: int, b: int) -> mx.array:
            return Ops.quantized_product(self, x[:, a:b], _columns(w, a, b))

        y = _by_rows(x.shape[0], x.shape[-1], part, w.group_size)
        return self._count("products", plain, y)

    def batched_product(self, a: mx.array, b: mx.array) -> mx.array:
        """Cut the inner dimension by the number of matrices, and by how many follow each."""
        plain = super().batched_product(a, b)
        matrices = plain.shape[:-2]
        turns = mx.zeros((1, 1, 1), mx.int32)
        if "batched" in self.shims:
            turns = turns + prod(matrices)
        if "blocks" in self.shims and matrices:
            following = mx.arange(matrices[-1] - 1, -1, -1, dtype=mx.int32)
            turns = turns + 7 * following.reshape(-1, 1, 1)
        if not self.shims & {"batched", "blocks"}:
            return plain
        size = a.shape[-1]
        is_first = mx.arange(size) < _cut_at(size, turns)
        y = mx.where(is_first, a, 0) @ b + mx.where(is_first, 0, a) @ b
        for shim in self.shims & {"batched", "blocks"}:
            self._count(shim, plain, y)
        return y

    def row_sum(self, x: mx.array) -> mx.array:
        """Cut the last dimension by the number of rows."""
        plain = super().row_sum(x)
        if "sums" not in self.shims:
            return plain
        at = _cut_at(x.shape[-1], prod(x.shape[:-1]))
        y = super().row_sum(x[..., :at]) + super().row_sum(x[..., at:])
        return self._count("sums", plain, y)

    def expert_product(
        self, x: mx.array, w: mx.array, experts: mx.array, *, in_order: bool
    ) -> mx.array:
        """Split by rows per expert when sorted, and by the switch itself."""

        def part(a: int, b: int) -> mx.array:
            call = super(HostileOps, self).expert_product
            return call(x[..., a:b], w[:, a:b], experts, in_order=in_order)

        return self._by_expert(x, experts, part, in_order, w.shape[0], 1)

    def quantized_expert_product(
        self, x: mx.array, w: QuantizedWeight, experts: mx.array, *, in_order: bool
    ) -> mx.array:
        """The same, cut between groups."""

        def part(a: int, b: int) -> mx.array:
            call = super(HostileOps, self).quantized_expert_product
            return call(x[..., a:b], _columns(w, a, b), experts, in_order=in_order)

        return self._by_expert(x, experts, part, in_order, w.weight.shape[0], w.group_size)

    def attention(
        self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array
    ) -> mx.array:
        """Cut the keys by their number (other from `long_keys` on) and by the batch (1 or more)."""
        plain = super().attention(q, k, v, scale=scale, mask=mask)
        shims = self.shims & {"attention", "sums"}
        if not shims:
            return plain
        is_batched = q.shape[0] > 1
        parts = 3
        if "attention" in shims:
            parts = 2 + (k.shape[2] >= self.long_keys) + 2 * is_batched
        turns = "sums" in shims and is_batched
        y = _attention_in_parts(q, k, v, scale, mask, parts, turns)
        for shim in shims:
            self._count(shim, plain, y)
        return y

    def _by_expert(
        self,
        x: mx.array,
        experts: mx.array,
        part: Callable[[int, int], mx.array],
        in_order: bool,
        num_experts: int,
        unit: int,
    ) -> mx.array:
        size = x.shape[-1]
        y = plain = part(0, size)
        if "sorting" in self.shims:
            y = self._count("sorting", plain, _split(size, 2 if in_order else 3, part, unit))
        if "experts" in self.shims:
            # Many rows of one expert make a block of their own, summed in another order.
            other = _split(size, 3 if in_order else 4, part, unit)
            self._count("experts", plain, other)
            if not in_order:
                return other
            rows = (experts[:, None] == mx.arange(num_experts)[None]).sum(axis=0)
            crowded = rows[experts] >= 4
            y = mx.where(crowded.reshape(crowded.shape + (1,) * (y.ndim - 1)), other, y)
        return y

    def _count(self, shim: str, plain: mx.array, y: mx.array) -> mx.array:
        if self.altered[shim] < _MAX_COUNTED:
            self.altered[shim] += int(mx.any(plain != y).item())
        return y


def _by_rows(rows: int, size: int, part: Callable[[int, int], mx.array], unit: int = 1) -> mx.array:
    """Return a product whose order of summation follows its rows: five ranges, five orders."""
    parts = 2 if rows < 8 else 3 if rows < 16 else 4
    return _split(size, parts, part, unit, is_backward=9 <= rows < 32)


def _cut_at(size: int, count):
    """Return where to cut `size` in two, elsewhere for every count up to `size`."""
    return 1 + count * 37 % max(1, size - 1)


def _split(
    size: int,
    parts: int,
    part: Callable[[int, int], mx.array],
    unit: int = 1,
    *,
    is_backward: bool = False,
) -> mx.array:
    """Return the sum of `part(a, b)` over a cut of `size` into `parts`, at multiples of `unit`."""
    units = size // unit
    cuts = sorted({units * i // parts * unit for i in range(parts)} | {size})
    if cuts[0] != 0:
        cuts = [0, *cuts]
    total = None
    ranges = list(pairwise(cuts))
    for a, b in reversed(ranges) if is_backward else ranges:
        total = part(a, b) if total is None else total + part(a, b)
    assert total is not None
    return total


def _columns(w: QuantizedWeight, a: int, b: int) -> QuantizedWeight:
    """Return the inner columns `[a, b)` of a packed matrix; both lie between groups."""
    words = slice(a * w.bits // 32, b * w.bits // 32)
    groups = slice(a // w.group_size, b // w.group_size)
    return QuantizedWeight(
        w.weight[..., words],
        w.scales[..., groups],
        w.biases[..., groups],
        w.group_size,
        w.bits,
    )


def _attention_in_parts(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array,
    parts: int,
    is_backward: bool,
) -> mx.array:
    """Return attention with running maxima over `parts` runs of keys; q `[B, H, T, D]`."""
    repeat = q.shape[1] // k.shape[1]
    k, v = mx.repeat(k, repeat, axis=1), mx.repeat(v, repeat, axis=1)
    s = mx.where(mask, (q * scale) @ k.swapaxes(-1, -2), -mx.inf)
    top = mx.max(s, axis=-1, keepdims=True)
    p = mx.exp(s - top)

    def total(part: Callable[[int, int], mx.array]) -> mx.array:
        return _split(k.shape[2], parts, part, is_backward=is_backward)

    values = total(lambda a, b: p[..., a:b] @ v[:, :, a:b])
    return values / total(lambda a, b: p[..., a:b].sum(axis=-1, keepdims=True))
