"""Changing any size of any layer changes the bytes exactly as the formula of its kind says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.catalog import load_model
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Mamba1,
    Mamba2,
    Mla,
    PooledAttention,
    ShortConv,
    SlidingWindow,
)
from qwisp.spec.model import ModelSpec

TOKENS, CHUNK, HALF, SINGLE = 5000, 128, 2, 4

FORMULAS = [
    (
        FullAttention(kv_heads=2, k_dim=96, v_dim=64),
        lambda x: TOKENS * x.kv_heads * (x.k_dim + x.v_dim) * HALF,
    ),
    (
        SlidingWindow(kv_heads=2, k_dim=96, v_dim=64, window_tokens=512),
        lambda x: (x.window_tokens + CHUNK) * x.kv_heads * (x.k_dim + x.v_dim) * HALF,
    ),
    (
        GatedDelta(value_heads=8, key_heads=4, value_dim=32, key_dim=64, conv_kernel=4),
        lambda x: (
            x.value_heads * x.value_dim * x.key_dim * SINGLE
            + (x.conv_kernel - 1)
            * (2 * x.key_heads * x.key_dim + x.value_heads * x.value_dim)
            * HALF
        ),
    ),
    (
        Mamba2(heads=8, head_dim=32, state_dim=64, groups=2, conv_kernel=4, inner_dim=256),
        lambda x: (
            x.heads * x.head_dim * x.state_dim * SINGLE
            + (x.conv_kernel - 1) * (x.inner_dim + 2 * x.groups * x.state_dim) * HALF
        ),
    ),
    (
        Mamba1(inner_dim=256, state_dim=16, conv_kernel=4),
        lambda x: x.inner_dim * x.state_dim * SINGLE + (x.conv_kernel - 1) * x.inner_dim * HALF,
    ),
    (ShortConv(hidden=128, kernel=3), lambda x: x.hidden * (x.kernel - 1) * HALF),
    (
        Mla(kv_lora_rank=512, rope_dim=64),
        lambda x: TOKENS * (x.kv_lora_rank + x.rope_dim) * HALF,
    ),
    (
        PooledAttention(row_elements=96, pooled_elements=16, pool_tokens=4),
        lambda x: (
            TOKENS * x.row_elements * HALF + -(-TOKENS // x.pool_tokens) * x.pooled_elements * HALF
        ),
    ),
]
HEADS_ONLY = {"heads", "nope_dim", "v_dim"}


def size(layer):
    spec = ModelSpec(name="one", family="geometry", layers=(layer,))
    return cache_bytes(spec, TOKENS, Fieldfare(chunk_tokens=CHUNK)).total_bytes


@pytest.mark.parametrize(
    ("layer", "formula", "key"),
    [
        pytest.param(layer, formula, f.name, id=f"{type(layer).__name__}-{f.name}")
        for layer, formula in FORMULAS
        for f in fields(layer)
        if not (isinstance(layer, Mla) and f.name in HEADS_ONLY)
    ],
)
def test_each_size_counts_as_the_formula_says(layer, formula, key):
    changed = replace(layer, **{key: getattr(layer, key) + 1})
    assert size(layer) == formula(layer)
    assert size(changed) == formula(changed)
    assert size(changed) != size(layer)


CONFIG_KEYS = {
    "gemma-4-26b-a4b": {
        "num_global_key_value_heads": 4,
        "global_head_dim": 256,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 512,
        "num_kv_shared_layers": 6,
    },
    "qwen3.6-35b-a3b": {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "full_attention_interval": 5,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 8,
        "linear_value_head_dim": 64,
        "linear_key_head_dim": 64,
        "linear_conv_kernel_dim": 3,
        "num_hidden_layers": 44,
    },
}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(name, key, value) for name, keys in CONFIG_KEYS.items() for key, value in keys.items()],
)
def test_each_key_of_a_catalog_config_reaches_the_total(name, key, value):
    from qwisp.spec.data_files import data_path
    from qwisp.spec.model import load_json

    values, _ = load_json(data_path("models", f"{name}.json"), "config.json")
    inner = values["config"]["text_config"]
    changed = ModelSpec.from_config({**inner, key: value})
    before = cache_bytes(load_model(name), 65536, Fieldfare()).total_bytes
    assert cache_bytes(changed, 65536, Fieldfare()).total_bytes != before
