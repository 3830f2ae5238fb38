"""A config that contradicts itself is refused, and the error names the key at fault."""

from __future__ import annotations

import copy

import pytest

from qwisp.errors import BadConfig, BadInput
from qwisp.spec.model import ModelSpec

GONE = object()
CASES = [
    ("llama", {"model_type": GONE}, "model_type"),
    ("llama", {"model_type": 7}, "model_type"),
    ("llama", {"num_hidden_layers": GONE}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": -4}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 4.0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": "4"}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("llama", {"num_attention_heads": 3}, "num_key_value_heads"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"head_dim": -32}, "head_dim"),
    ("llama", {"head_dim": 2**40}, "head_dim"),
    ("llama", {"head_dim": GONE, "hidden_size": 66}, "num_attention_heads"),
    ("llama", {"layer_types": ["full_attention"] * 3}, "layer_types"),
    ("llama", {"layer_types": "full"}, "layer_types"),
    ("llama", {"layer_types": ["full_attention", "sliding", [], None]}, "layer_types"),
    ("llama", {"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
    ("llama", {"max_position_embeddings": -1}, "max_position_embeddings"),
    ("llama", {"rope_scaling": "yarn"}, "rope_scaling"),
    ("llama", {"dtype": "int3"}, "dtype"),
    ("llama", {"vocab_size": 1.5}, "vocab_size"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": GONE}, "sliding_window"),
    ("qwen2", {"use_sliding_window": 1}, "use_sliding_window"),
    ("gemma4", {"num_kv_shared_layers": 6}, "text_config.num_kv_shared_layers"),
    ("gemma4", {"num_kv_shared_layers": 1}, "text_config.num_kv_shared_layers"),
    ("gemma4", {"num_global_key_value_heads": 3}, "text_config.num_global_key_value_heads"),
    ("gemma4", {"global_head_dim": 0}, "text_config.global_head_dim"),
    ("gemma4", {"sliding_window": GONE}, "text_config.sliding_window"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ("gpt_oss", {"layer_types": ["sliding_attention"] * 5}, "layer_types"),
    ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads"),
    ("qwen3_next", {"linear_key_head_dim": GONE}, "linear_key_head_dim"),
    ("qwen3_next", {"full_attention_interval": -4}, "full_attention_interval"),
    ("deepseek_v3", {"kv_lora_rank": GONE}, "kv_lora_rank"),
    ("deepseek_v3", {"first_k_dense_replace": 9}, "first_k_dense_replace"),
    ("deepseek_v3", {"num_nextn_predict_layers": 10**6}, "num_nextn_predict_layers"),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*M"}, "hybrid_override_pattern"),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*MX"}, "hybrid_override_pattern"),
    ("nemotron_h", {"n_groups": 3}, "n_groups"),
    ("falcon_h1", {"mamba_d_ssm": 97}, "mamba_d_ssm"),
    ("granitemoehybrid", {"mamba_expand": 3}, "mamba_expand"),
    ("granitemoehybrid", {"attn_layer_indices": [1]}, "attn_layer_indices"),
    ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices"),
    ("bamba", {"attn_layer_indices": [1, 1]}, "attn_layer_indices"),
    ("jamba", {"attn_layer_offset": 4}, "attn_layer_offset"),
    ("lfm2", {"full_attn_idxs": [0, 3]}, "full_attn_idxs"),
    ("lfm2", {"conv_L_cache": "3"}, "conv_L_cache"),
    ("kimi_linear", {"linear_attn_config": GONE}, "linear_attn_config"),
]


@pytest.mark.parametrize(("name", "changes", "key"), CASES)
def test_refused_with_its_key(configs, name, changes, key):
    config = copy.deepcopy(configs[name])
    inner = config.get("text_config", config)
    for changed, value in changes.items():
        if value is GONE:
            del inner[changed]
        else:
            inner[changed] = value
    with pytest.raises(BadConfig) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key
    assert key.rsplit(".", 1)[-1] in caught.value.what


def test_kimi_layers_are_counted_from_one_and_each_listed_once(configs):
    config = copy.deepcopy(configs["kimi_linear"])
    config["linear_attn_config"]["kda_layers"] = [0, 1, 2]
    with pytest.raises(BadConfig) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == "linear_attn_config.kda_layers"
    config["linear_attn_config"]["kda_layers"] = [1, 2]
    with pytest.raises(BadConfig, match="between them"):
        ModelSpec.from_config(config)


def test_unreadable_paths_are_two_lines(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        ModelSpec.from_config(tmp_path / "none.json")
    with pytest.raises(BadInput, match="does not exist"):
        ModelSpec.from_config(tmp_path)
    for text in ("", "{", "[]", "null", "\xff\xfe", "[" * 100_000):
        path = tmp_path / "config.json"
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(BadInput) as caught:
            ModelSpec.from_config(path)
        assert len(str(caught.value).splitlines()) == 2
