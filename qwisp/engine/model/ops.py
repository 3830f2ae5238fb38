"""The operations whose summation order real kernels choose by shape; the rest is elementwise.

The decoder reaches products, batched products, sums of attention weights, expert products and stock
attention only through an `Ops` object, so that a test can put kernels in its place that are as
unkind as a GPU's.
"""

from __future__ import annotations

import mlx.core as mx


class Ops:
    """MLX's own kernels. Weights are stored so that the inner dimension is a row: `[K, N]`."""

    def product(self, x: mx.array, w: mx.array) -> mx.array:
        """Return `x @ w`; x is `[M, K]`, w `[K, N]`."""
        return x @ w

    def quantized_product(self, x: mx.array, w: QuantizedWeight) -> mx.array:
        """Return `x @ w^T` for affine-quantised w of `[N, K]`; x is `[M, K]`."""
        return mx.quantized_matmul(
            x, w.weight, w.scales, w.biases, transpose=True, group_size=w.group_size, bits=w.bits
        )

    def batched_product(self, a: mx.array, b: mx.array) -> mx.array:
        """Return a product per leading index; a is `[..., M, K]`, b `[..., K, N]`."""
        return a @ b

    def row_sum(self, x: mx.array) -> mx.array:
        """Return the sum of each row, `[..., 1]`; x is `[..., K]`."""
        return mx.sum(x, axis=-1, keepdims=True)

    def expert_product(
        self, x: mx.array, w: mx.array, experts: mx.array, *, in_order: bool
    ) -> mx.array:
        """Return one row times one expert per pair; x `[..., 1, K]`, w `[E, K, N]`.

        `in_order` says that `experts` is sorted, which lets a kernel treat an expert's rows as one
        block.
        """
        return mx.gather_mm(x, w, rhs_indices=experts, sorted_indices=in_order)

    def quantized_expert_product(
        self, x: mx.array, w: QuantizedWeight, experts: mx.array, *, in_order: bool
    ) -> mx.array:
        """The same for affine-quantised w of `[E, N, K]`."""
        return mx.gather_qmm(
            x,
            w.weight,
            w.scales,
            w.biases,
            rhs_indices=experts,
            transpose=True,
            group_size=w.group_size,
            bits=w.bits,
            sorted_indices=in_order,
        )

    def attention(
        self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array
    ) -> mx.array:
        """Return stock attention, never used in strict mode; q `[B, H, T, D]`, k, v `[B, G, S, D]`.

        `mask` is boolean, broadcastable to `[B, H, T, S]`.
        """
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


class QuantizedWeight:
    """An affine-quantised matrix: packed words, a scale and a bias per group."""

    __slots__ = ("biases", "bits", "group_size", "scales", "weight")

    def __init__(
        self, weight: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
    ) -> None:
        self.weight = weight
        self.scales = scales
        self.biases = biases
        self.group_size = group_size
        self.bits = bits
