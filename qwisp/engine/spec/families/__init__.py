"""Which reader turns which `model_type` into a `DecoderSpec`. One file per group of families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.spec.families.delta import read_delta
from qwisp.engine.spec.families.gemma3 import read_gemma3
from qwisp.engine.spec.families.gemma4 import read_gemma4
from qwisp.engine.spec.families.grouped import read_grouped
from qwisp.engine.spec.geometry import check_geometry
from qwisp.errors import BadConfig
from qwisp.spec.fields import Fields
from qwisp.spec.model import ModelSpec

READERS = {
    "llama": read_grouped,
    "qwen3": read_grouped,
    "qwen3_moe": read_grouped,
    "qwen3_next": read_delta,
    "qwen3_5": read_delta,
    "qwen3_5_text": read_delta,
    "qwen3_5_moe": read_delta,
    "qwen3_5_moe_text": read_delta,
    "gemma3": read_gemma3,
    "gemma3_text": read_gemma3,
    "gemma4": read_gemma4,
    "gemma4_text": read_gemma4,
}


def read_decoder(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the decoder of a Hugging Face config dict.

    Raises `BadConfig` naming the family, key or size that this engine does not run.

    >>> spec = read_decoder({"model_type": "llama", "hidden_size": 64,
    ...     "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    ...     "vocab_size": 256, "rms_norm_eps": 1e-5})
    >>> spec.blocks[0].attention.rope.dims, spec.blocks[0].ffn.intermediate
    (16, 128)
    """
    inner = config.get("text_config")
    is_nested = isinstance(inner, Mapping)
    f = Fields({**config, **inner}) if is_nested else Fields(config)
    family = f.text("model_type")
    if family not in READERS:
        raise BadConfig(
            f"family {family[:40]} is not run by the lane engine",
            f"use one of {', '.join(sorted(READERS))}",
            key="model_type",
        )
    spec = READERS[family](ModelSpec.from_config(config), f, is_nested=is_nested)
    check_geometry(spec)
    return spec
