"""Random weights of a decoder: plain ones of small models, packed ones of full shapes."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.engine.weights.weight_shapes import weight_shapes


def random_weights(spec: DecoderSpec, seed: int, dtype: str = "float32") -> dict[str, mx.array]:
    """Return every weight of `spec`; matrices keep the size of what they multiply.

    `A_log` stays fp32 whatever the type, as checkpoints keep it.
    """
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in weight_shapes(spec):
        values = _values(name, shape, rng, spec)
        kept = mx.float32 if name.endswith("A_log") else mlx_dtype(dtype)
        made[name] = mx.array(values.astype(np.float32)).astype(kept)
    mx.eval(list(made.values()))
    return made


def _values(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, spec: DecoderSpec
) -> np.ndarray:
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 8, shape))
    if name.endswith("dt_bias"):
        return rng.normal(0, 0.5, shape)
    if name.endswith("conv1d.weight"):
        return rng.normal(0, 0.6, shape)
    if name.endswith(("per_expert_scale", "layer_scalar", "router.scale")):
        return rng.uniform(0.5, 1.5, shape)
    if "norm" in name:
        return 1 - spec.norm_offset + rng.normal(0, 0.1, shape)
    if name.endswith("bias"):
        return rng.normal(0, 0.1, shape)
    if "embed_tokens" in name:
        # A tied map that read large embeddings would only ever repeat the last token.
        return rng.normal(0, 1 / spec.embed_scale if spec.is_tied else 1, shape)
    return rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape)


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
