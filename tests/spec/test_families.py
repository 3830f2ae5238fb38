"""Every family's tiny config becomes exactly the layers that its reference code would build."""

from __future__ import annotations

import copy
from itertools import groupby

import pytest

from qwisp.errors import BadConfig
from qwisp.spec.families import FAMILIES
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Mamba1,
    Mamba2,
    Mla,
    Parallel,
    Shared,
    ShortConv,
    SlidingWindow,
    Stateless,
)
from qwisp.spec.model import ModelSpec


def full(kv_heads, dim):
    return FullAttention(kv_heads=kv_heads, k_dim=dim, v_dim=dim)


def window(kv_heads, dim, tokens=64):
    return SlidingWindow(kv_heads=kv_heads, k_dim=dim, v_dim=dim, window_tokens=tokens)


F32, F16, W32, W16 = full(2, 32), full(2, 16), window(2, 32), window(2, 16)
DELTA = GatedDelta(value_heads=4, key_heads=2, value_dim=32, key_dim=32, conv_kernel=4)
KDA = GatedDelta(value_heads=4, key_heads=4, value_dim=32, key_dim=32, conv_kernel=4)
LATENT = Mla(kv_lora_rank=32, rope_dim=16, heads=4, nope_dim=24, v_dim=16)
CONV = ShortConv(hidden=64, kernel=3)
MAMBA1 = Mamba1(inner_dim=128, state_dim=16, conv_kernel=4)


def mamba2(heads, head_dim, groups):
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        state_dim=32,
        groups=groups,
        conv_kernel=4,
        inner_dim=heads * head_dim,
    )


PLAIN_32 = ("gemma", "glm4", "glm4_moe", "llama", "ministral3", "mistral", "mistral3", "qwen3")
PLAIN_32 += ("qwen3_moe", "qwen3_vl", "qwen3_vl_moe")
PLAIN_16 = ("cohere", "generic", "glm", "granite", "granitemoe", "internlm2", "minicpm", "mixtral")
PLAIN_16 += ("olmoe", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "smollm3")
PLAIN_16 += ("stablelm", "starcoder2")

EXPECTED = {
    **dict.fromkeys(PLAIN_32, [F32] * 4),
    **dict.fromkeys(PLAIN_16, [F16] * 4),
    "olmo2": [full(4, 32)] * 4,
    "llama_windows": [W32, F32] * 2,
    "mistral_window": [W32] * 4,
    "ministral": [W32] * 3 + [F32],
    "qwen2_window": [F16, F16, W16, W16],
    "olmo3": [W32] * 3 + [F32],
    "cohere2": [W16] * 3 + [F16],
    "gemma2": [W32, F32] * 2,
    "gemma3": [W32] * 5 + [F32, W32],
    "gemma3_text": [W32] * 5 + [F32, W32],
    "gemma3n": [W32] * 4 + [F32] + [Shared(source=3)] * 4 + [Shared(source=4)],
    "gemma4": [W32] * 5 + [full(1, 64)],
    "gemma4_unified": [W32] * 5 + [full(1, 64)],
    "gemma4_moe": [W32] * 5 + [full(1, 64)],
    "gemma4_shared": [W32] * 5
    + [full(2, 64), W32, W32]
    + [Shared(source=7)] * 3
    + [Shared(source=5)],
    "gpt_oss": [W32, F32] * 2,
    "deepseek_v2": [LATENT] * 3,
    "deepseek_v3": [LATENT] * 3,
    "kimi_k2": [LATENT] * 3,
    "glm4_moe_lite": [LATENT] * 3,
    "kimi_linear": [KDA] * 3 + [LATENT],
    "qwen3_next": [DELTA] * 3 + [F32],
    "qwen3_5": [DELTA] * 3 + [F32],
    "qwen3_5_moe": [DELTA] * 3 + [F32],
    "nemotron_h": [
        mamba2(4, 32, 2),
        Stateless(),
        mamba2(4, 32, 2),
        F16,
        mamba2(4, 32, 2),
        Stateless(),
    ],
    "falcon_h1": [Parallel(parts=(F32, mamba2(6, 16, 1)))] * 4,
    "granitemoehybrid": [mamba2(8, 16, 1)] * 2 + [F16, mamba2(8, 16, 1)],
    "bamba": [mamba2(8, 16, 1)] * 2 + [F16, mamba2(8, 16, 1)],
    "jamba": [MAMBA1, MAMBA1, F16, MAMBA1],
    "lfm2": [CONV, F16] * 2,
    "lfm2_moe": [CONV, F16] * 2,
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_config_becomes_these_layers(configs, name):
    spec = ModelSpec.from_config(configs[name])
    assert list(spec.layers) == EXPECTED[name]
    assert (spec.hidden, spec.vocab, spec.query_heads) == (64, 256, 4)
    assert spec.context_max_tokens >= 32768


def test_every_family_has_a_tiny_config_and_every_config_an_expectation(configs):
    assert set(configs) == set(EXPECTED)
    read = {ModelSpec.from_config(config).family for config in configs.values()}
    outer = {config["model_type"] for config in configs.values()}
    assert set(FAMILIES) <= read | outer


@pytest.mark.parametrize(
    ("name", "layer"),
    [("qwen3_5", F32), ("deepseek_v3", LATENT), ("glm4_moe", F32)],
)
def test_draft_layers_stand_beside_the_model(configs, name, layer):
    spec = ModelSpec.from_config(configs[name])
    assert spec.draft_layers == (layer,)
    assert layer not in spec.layers[len(EXPECTED[name]) :]


def test_the_fallback_says_what_it_is(configs):
    spec = ModelSpec.from_config(configs["generic"])
    assert spec.generic
    assert "not a known family" in spec.notes[0]
    assert not ModelSpec.from_config(configs["llama"]).generic


@pytest.mark.parametrize("key", ["sliding_window", "layer_types", "ssm_state_size", "kv_lora_rank"])
def test_the_fallback_refuses_what_speaks_of_other_layers(configs, key):
    with pytest.raises(BadConfig) as caught:
        ModelSpec.from_config({**configs["generic"], key: 8})
    assert caught.value.key == "model_type"
    assert key in caught.value.what


def test_nested_and_flat_text_configs_are_one_model(configs):
    nested = configs["qwen3_5"]
    assert (
        ModelSpec.from_config(nested).layers == ModelSpec.from_config(nested["text_config"]).layers
    )


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (None, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 65536}, 262144),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}, 131072),
        ({"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 65536}, 131072),
    ],
)
def test_native_context_follows_a_yarn_stretch(configs, rope, tokens):
    config = {**configs["llama"], "rope_scaling": rope}
    assert ModelSpec.from_config(config).context_max_tokens == tokens


def test_number_type_sets_the_cache_type(configs):
    assert ModelSpec.from_config({**configs["llama"], "dtype": "float32"}).element_bytes == 4
    assert ModelSpec.from_config({**configs["llama"], "torch_dtype": "bfloat16"}).element_bytes == 2


def runs(layers):
    return [(layer, len(list(group))) for layer, group in groupby(layers)]


def test_listed_types_win_over_nothing_and_must_agree_with_an_interval(configs):
    config = copy.deepcopy(configs["qwen3_5"]["text_config"])
    config["layer_types"] = ["full_attention", "linear_attention"] * 2
    with pytest.raises(BadConfig) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == "full_attention_interval"
    del config["full_attention_interval"]
    assert runs(ModelSpec.from_config(config).layers) == [(F32, 1), (DELTA, 1)] * 2
