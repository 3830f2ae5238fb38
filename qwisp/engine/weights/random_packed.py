"""Random affine-quantised weights made where they are used: full model shapes without a download.

For memory and speed, which do not depend on the values, at shapes too large for numpy.
"""

from __future__ import annotations

import math

import mlx.core as mx

from qwisp.engine.cache.arena import mlx_dtype
from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.weights.random_weights import weight_shapes

MIN_ROWS = 512
"""Matrices with fewer output rows stay unquantised, as routers and gates do in checkpoints."""
UNPACKED = 2**62
"""So many rows that no matrix has: every weight stays plain."""


def random_packed_weights(
    spec: DecoderSpec,
    seed: int,
    dtype: str = "bfloat16",
    *,
    bits: int = 4,
    group_size: int = 64,
    min_rows: int = MIN_ROWS,
) -> dict[str, mx.array]:
    """Return every weight of `spec` by name, large matrices as packed words, scales and biases.

    Values are uniform with the variance that keeps activations of order one.
    """
    mx.random.seed(seed)
    kept = mlx_dtype(dtype)
    made: dict[str, mx.array] = {}
    for name, shape in weight_shapes(spec):
        stem = name.removesuffix(".weight")
        if len(shape) > 1 and shape[-2] >= min_rows and shape[-1] % group_size == 0:
            # Half words: whole ones come from floats, whose low bits are not random.
            halves = (*shape[:-1], shape[-1] * bits // 16)
            words = mx.random.randint(0, 2**16, halves, mx.uint16)
            # A uniform value of 0 .. 2^bits - 1 has a standard deviation of 2^bits / sqrt(12).
            step = math.sqrt(12) / 2**bits / math.sqrt(shape[-1])
            groups = (*shape[:-1], shape[-1] // group_size)
            made[name] = words.view(mx.uint32)
            made[f"{stem}.scales"] = mx.full(groups, step, kept)
            made[f"{stem}.biases"] = mx.full(groups, -step * (2**bits - 1) / 2, kept)
        elif name.endswith("A_log"):
            made[name] = mx.log(mx.random.uniform(0.05, 8, shape))
        elif "norm" in name:
            made[name] = mx.full(shape, 1 - spec.norm_offset, kept)
        else:
            made[name] = (mx.random.normal(shape) / math.sqrt(shape[-1])).astype(kept)
        mx.eval(made[name])
    mx.eval(list(made.values()))
    return made
