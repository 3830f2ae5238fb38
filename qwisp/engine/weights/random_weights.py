"""Random weights for a decoder spec, named as checkpoints name them: equal seeds, equal bits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.arena import mlx_dtype
from qwisp.engine.spec.decoder_spec import DecoderSpec
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
