"""Tiny configs of every mixer and feed-forward kind, for tests, certificates and demonstrations."""

from __future__ import annotations

from typing import Any

from qwisp.errors import BadInput

_HYBRID = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 256,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}

_EXPERTS = {
    "num_experts": 16,
    "num_experts_per_tok": 8,  # 8 rows x 8 indices = 64: where stock mixtures begin to sort
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
}

_GROUPED = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 256,
    "rope_theta": 1e4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

_GEMMA4 = {
    **_GROUPED,
    "model_type": "gemma4_text",
    "tie_word_embeddings": True,
    "global_head_dim": 64,
    "sliding_window": 40,
    "vocab_size_per_layer_input": 256,
    "final_logit_softcapping": 30.0,
}

TINY: dict[str, dict[str, Any]] = {
    "hybrid": {"model_type": "qwen3_5", "text_config": _HYBRID},
    "hybrid_moe": {"model_type": "qwen3_5_moe", "text_config": {**_HYBRID, **_EXPERTS}},
    "llama": {"model_type": "llama", **_GROUPED},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_GROUPED,
        "num_experts": 16,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **_GROUPED,
        "num_hidden_layers": 3,
        "sliding_window": 40,
        "sliding_window_pattern": 3,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
        "query_pre_attn_scalar": 32,
    },
}
"""Name to config: gated delta + gated attention (dense, MoE with shared expert), plain attention,
attention with query-key norm and MoE, sliding windows. Every mixer and feed-forward kind once."""

MORE_TINY: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", **_GROUPED, "tie_word_embeddings": True},
    "qwen3_next": {
        **_HYBRID,
        "model_type": "qwen3_next",
        **_EXPERTS,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_parameters": None,
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
    "gemma4": {
        **_GEMMA4,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 32,
        "use_double_wide_mlp": True,
    },
    "gemma4_moe": {
        **_GEMMA4,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 16,
        "top_k_experts": 8,
        "moe_intermediate_size": 32,
    },
}
"""Families whose blocks are made of the same parts in another arrangement."""


def tiny_config(name: str) -> dict[str, Any]:
    """Return a tiny config by name.

    Raises `BadInput` naming the known ones.

    >>> tiny_config("llama")["hidden_size"]
    64
    """
    known = {**TINY, **MORE_TINY}
    if name not in known:
        raise BadInput(f"tiny model {name!r} is not known", f"use one of {', '.join(known)}")
    return known[name]
