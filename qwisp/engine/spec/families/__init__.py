"""Which reader turns which `model_type` into a `DecoderSpec`. One file per group of families."""

from __future__ import annotations

from qwisp.engine.spec.families.delta import read_delta
from qwisp.engine.spec.families.gemma3 import read_gemma3
from qwisp.engine.spec.families.gemma4 import read_gemma4
from qwisp.engine.spec.families.grouped import read_grouped

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
