"""qwen3_next keeps four projections of gated delta in two matrices, head by head; take them apart.

Output rows are only reordered, so packed words, scales and biases are split alike and no product
changes.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.errors import BadInput
from qwisp.spec.layers import GatedDelta


def split_fused(weights: dict[str, mx.array], spec: DecoderSpec) -> dict[str, mx.array]:
    """Return the weights with `in_proj_qkvz` and `in_proj_ba` taken apart, if they are there."""
    made = dict(weights)
    for index, block in enumerate(spec.blocks):
        if not isinstance(block.layer, GatedDelta):
            continue
        name = f"{spec.prefix}model.layers.{index}.linear_attn"
        layer = block.layer
        counts = layer.conv_dim + layer.value_heads * layer.value_dim, 2 * layer.value_heads
        for fused, rows_of, num_rows in (
            ("in_proj_qkvz", _qkvz_rows, counts[0]),
            ("in_proj_ba", _ba_rows, counts[1]),
        ):
            for part in ("weight", "scales", "biases"):
                whole = made.pop(f"{name}.{fused}.{part}", None)
                if whole is None:
                    continue
                if whole.shape[0] != num_rows:  # before anything of that size is made
                    raise BadInput(
                        f"weight {name}.{fused}.{part} has {whole.shape[0]:,} rows, the config "
                        f"gives {num_rows:,}",
                        "the config does not belong to these weights",
                    )
                for target, picked in rows_of(layer).items():
                    made[f"{name}.{target}.{part}"] = whole[mx.array(picked)]
    return made


def _qkvz_rows(layer: GatedDelta) -> dict[str, np.ndarray]:
    """Return which rows of the fused matrix each projection takes, in its own order.

    A key head's rows stand together: its query, key, values and gates.
    """
    repeat = layer.value_heads // layer.key_heads
    key, value = layer.key_dim, repeat * layer.value_dim
    rows = np.arange(layer.key_heads * 2 * (key + value)).reshape(layer.key_heads, -1)
    q, k, v, z = np.split(rows, [key, 2 * key, 2 * key + value], axis=1)
    qkv = np.concatenate([part.reshape(-1) for part in (q, k, v)])
    return {"in_proj_qkv": qkv, "in_proj_z": z.reshape(-1)}


def _ba_rows(layer: GatedDelta) -> dict[str, np.ndarray]:
    repeat = layer.value_heads // layer.key_heads
    rows = np.arange(2 * layer.value_heads).reshape(layer.key_heads, -1)
    b, a = np.split(rows, [repeat], axis=1)
    return {"in_proj_b": b.reshape(-1), "in_proj_a": a.reshape(-1)}
