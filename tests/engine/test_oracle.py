"""Every family computes what mlx-lm's own class computes: equal greedy tokens, logits to a bound.

The bound is one of fp32 arithmetic: the two sum the same few hundred products per row in another
order, through up to five layers, on logits of size 4 to 13. Measured: at most 5e-5.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from qwisp.engine.loading import load_model
from qwisp.engine.tiny import MORE_TINY, TINY

from .oracle import CHUNK, compare, engine_steps, oracle_model, oracle_steps, save

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'qwisp[lm]'")
pytestmark = [
    pytest.mark.mlx,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by what mlx-lm imports
]

BOUND = 2e-4
STEPS = 200
FAMILIES = {
    name: {key: value for key, value in config.items() if value is not None}
    for name, config in {**TINY, **MORE_TINY}.items()
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_QWEN_ROPE = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
_FULL_ROPE = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
_WINDOW_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 16,
    "long_factor": [1.0 + 0.25 * i for i in range(16)],
}

# Name: family, what its config says, and whether the family's plain config loads the same weights,
# so that one can see that the key changes the arithmetic.
VARIANTS = {
    "linear rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, True),
    "llama3 rope": ("llama", {"rope_scaling": _LLAMA3}, True),
    "llama3 rope, named high and low": (
        "llama",
        {"rope_scaling": _LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 8.0}},
        True,
    ),
    "yarn": ("qwen3", {"rope_scaling": _YARN}, True),
    "yarn, all keys": (
        "llama",
        {"rope_scaling": _YARN | {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7}},
        True,
    ),
    "longrope": ("llama", {"rope_scaling": _LONG}, True),
    "traditional rope": ("llama", {"rope_traditional": True}, True),
    "rope base": ("llama", {"rope_theta": 500.0}, True),
    "rope parameters": (
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_theta": 99.0}},
        True,
    ),
    "partial rope": ("qwen3_next", {"partial_rotary_factor": 0.5}, True),
    "partial rope, nested": (
        "hybrid",
        {"rope_parameters": _QWEN_ROPE | {"partial_rotary_factor": 0.75}},
        True,
    ),
    "mrope on text": (
        "hybrid",
        {"rope_parameters": _QWEN_ROPE | {"type": "mrope", "mrope_section": [1, 1, 2]}},
        False,
    ),
    "windows' own rope base": ("gemma3", {"rope_local_base_freq": 50.0}, True),
    "linear rope outside windows": (
        "gemma3",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        True,
    ),
    "proportional rope": (
        "gemma4",
        {"rope_parameters": {"full_attention": _FULL_ROPE, "sliding_attention": _WINDOW_ROPE}},
        True,
    ),
    "attention scale": ("gemma3", {"query_pre_attn_scalar": 8}, True),
    "norm epsilon": ("llama", {"rms_norm_eps": 0.1}, True),
    "attention bias": ("llama", {"attention_bias": True}, False),
    "attention bias, gated": ("qwen3_next", {"attention_bias": True}, False),
    "feed-forward bias": ("llama", {"mlp_bias": True}, False),
    "windows by layer type": (
        "llama",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40},
        True,
    ),
    "tied llama": ("llama", {"tie_word_embeddings": True}, False),
    "untied qwen3": ("qwen3", {"tie_word_embeddings": False}, False),
    "tied hybrid": ("hybrid", {"tie_word_embeddings": True}, False),
    "untied gemma4": ("gemma4", {"tie_word_embeddings": False}, False),
    "router not normalised": ("qwen3_moe", {"norm_topk_prob": False}, True),
    "router not normalised, shared expert": ("hybrid_moe", {"norm_topk_prob": False}, True),
    "experts in every other layer": ("qwen3_moe", {"decoder_sparse_step": 2}, False),
    "a dense layer by name": ("qwen3_moe", {"mlp_only_layers": [0]}, False),
    "logit cap": ("gemma4", {"final_logit_softcapping": 2.0}, True),
    "no logit cap": ("gemma4_moe", {"final_logit_softcapping": None}, False),
    "double width off": ("gemma4", {"use_double_wide_mlp": False}, False),
    "no shared caches": ("gemma4", {"num_kv_shared_layers": 0}, False),
    "keys are no values": ("gemma4_moe", {"attention_k_eq_v": False}, False),
    "no input per layer": ("gemma4", {"hidden_size_per_layer_input": 0}, False),
    "window pattern": ("gemma3", {"sliding_window_pattern": 2}, True),
}


def varied(family: str, keys: dict) -> dict:
    """Return a family's config with some keys of its language model replaced."""
    config = dict(FAMILIES[family])
    if "text_config" in config:
        return config | {"text_config": config["text_config"] | keys}
    return config | keys


def distance(a, b) -> float:
    return float(np.abs(a.logits - b.logits).max())


@pytest.mark.parametrize("bits", [None, 4], ids=["fp32", "4-bit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_its_oracle_over_200_steps(family, bits, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES[family], steps=STEPS, bits=bits)
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == STEPS
    assert distance(ours, theirs) < BOUND


@pytest.mark.parametrize("name", VARIANTS)
def test_a_key_that_changes_the_arithmetic_is_obeyed(name, tmp_path):
    family, keys, loads_plain = VARIANTS[name]
    steps = 24
    config = varied(family, keys)
    theirs, ours = compare(tmp_path, config, steps=steps)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND
    if loads_plain:  # the same weights under the plain config: somebody who missed the key
        (tmp_path / "config.json").write_text(json.dumps(FAMILIES[family]))
        prompt = tuple(np.random.default_rng(1).integers(0, 256, 100).tolist())
        missed = engine_steps(load_model(tmp_path), prompt, 1)
        assert np.abs(missed.logits[0] - theirs.logits[0]).max() > 10 * BOUND


@pytest.mark.parametrize("prompt_tokens", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK])
@pytest.mark.parametrize("family", ["hybrid_moe", "gemma3", "gemma4"])
def test_any_prompt_length_equals_the_oracle(family, prompt_tokens, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES[family], steps=8, prompt_tokens=prompt_tokens)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 8])
def test_other_bit_widths_equal_the_oracle(bits, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES["llama"], steps=12, bits=bits)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND


def test_a_changed_weight_is_seen(tmp_path):
    """The comparison can fail: one weight of one layer off by a hundredth."""
    config = FAMILIES["llama"]
    model = oracle_model(config)
    save(tmp_path, model, config)
    prompt = tuple(range(60))
    ours = engine_steps(load_model(tmp_path), prompt, 4)
    w = model.model.layers[1].mlp.down_proj.weight
    w[3, 5] = w[3, 5] + 0.01
    assert distance(ours, oracle_steps(model, prompt, 4)) > BOUND
