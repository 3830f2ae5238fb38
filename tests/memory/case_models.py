"""Configs of the models that public trouble reports are about, cut to what memory depends on.

Sizes are those of the published configs.
"""

from __future__ import annotations

from qwisp.spec.model import ModelSpec

QWEN3_NEXT_80B = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
}
QWEN35_27B = {
    **QWEN3_NEXT_80B,
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
}
QWEN35_4B = {
    **QWEN35_27B,
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "linear_num_value_heads": 32,
}
QWEN36_35B = {
    **QWEN3_NEXT_80B,
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 40,
}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "kda_layers": [i for i in range(1, 28) if i % 4 and i != 27],
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 1048576,
}
LFM2_1B = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "max_position_embeddings": 128000,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}
GEMMA3_27B = {
    "model_type": "gemma3_text",
    "hidden_size": 5376,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
GEMMA3_4B = {
    **GEMMA3_27B,
    "hidden_size": 2560,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
GEMMA4_31B = {
    "model_type": "gemma4_text",
    "hidden_size": 5376,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 262144,
}
GRANITE4_H_SMALL = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "max_position_embeddings": 131072,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
QWEN3_1B7 = {
    **QWEN3_30B_A3B,
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
SIXTY_FOUR_HEADS = {
    **QWEN3_30B_A3B,
    "model_type": "qwen3",
    "num_attention_heads": 64,
    "head_dim": 256,
}
SCOUT_GEOMETRY = [
    {"kind": "full_attention", "count": 12, "kv_heads": 8, "k_dim": 128, "v_dim": 128},
    {
        "kind": "sliding_window",
        "count": 36,
        "kv_heads": 8,
        "k_dim": 128,
        "v_dim": 128,
        "window": 8192,
    },
]


def spec_of(config: dict, **changes: object) -> ModelSpec:
    """Return the spec of a config with some of its keys changed."""
    return ModelSpec.from_config({**config, **changes})
