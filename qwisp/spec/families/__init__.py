"""Which reader understands which `model_type`. One file per group of families, loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from qwisp.errors import BadConfig
from qwisp.spec.families.common import Blocks, context_tokens, element_bytes
from qwisp.spec.fields import Fields

_MODULES: dict[str, tuple[str, ...]] = {
    "grouped": (
        *("llama", "glm", "glm4", "glm4_moe", "olmo2", "olmoe", "granite", "granitemoe"),
        *("gemma", "starcoder2", "smollm3", "stablelm", "internlm2", "cohere", "minicpm"),
        *("mistral", "mixtral", "ministral", "ministral3", "mistral3", "phi3", "phimoe", "olmo3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl"),
        *("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe"),
        *("qwen3_vl_moe_text",),
    ),
    "gemma": ("gemma2", "gemma3", "gemma3_text", "cohere2"),
    "gemma3n": ("gemma3n", "gemma3n_text"),
    "gemma4": ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    "gpt_oss": ("gpt_oss",),
    "mla": ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"),
    "delta": ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    "kimi_linear": ("kimi_linear",),
    "nemotron_h": ("nemotron_h",),
    "mamba": ("falcon_h1", "granitemoehybrid", "bamba"),
    "jamba": ("jamba",),
    "lfm2": ("lfm2", "lfm2_moe"),
}
FAMILIES: dict[str, str] = {name: module for module, many in _MODULES.items() for name in many}
"""Model type to the module of this package that reads it."""

_NESTED = ("text_config", "llm_config", "language_config")


def _text_fields(config: Mapping[str, Any]) -> Fields:
    """Return the language model's own fields: those of a nested config where there is one."""
    outer = Fields(config)
    for key in _NESTED:
        if outer.has(key):
            inner = outer.section(key)
            merged = {**config, **inner.values}
            return Fields(merged, f"{key}.")
    return outer


def read_config(config: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return the fields of the `ModelSpec` of a parsed config; see `ModelSpec.from_config`."""
    fields = _text_fields(config)
    family = fields.text("model_type")
    read = _reader(family, fields)
    blocks = read(fields)
    if not blocks.layers:
        raise fields.conflict("num_hidden_layers", "gives no layer at all")
    return {
        "name": name or fields.text("_name_or_path", None) or family,
        "family": family,
        "layers": tuple(blocks.layers),
        "draft_layers": tuple(blocks.draft),
        "context_max_tokens": context_tokens(fields),
        "hidden": fields.size("hidden_size", None),
        "query_heads": fields.size("num_attention_heads", blocks.query_heads),
        "vocab": fields.size("vocab_size", None),
        "element_bytes": element_bytes(fields),
        "notes": tuple(fields.notes),
        "generic": blocks.generic,
    }


def _reader(family: str, fields: Fields) -> Callable[[Fields], Blocks]:
    """Return the family's reader; the generic one only if nothing hints at other layer kinds."""
    module = FAMILIES.get(family)
    if module is not None:
        return import_module(f"qwisp.spec.families.{module}").read
    generic = import_module("qwisp.spec.families.generic")
    hint = generic.foreign_key(fields)
    if hint is None:
        return generic.read
    near = get_close_matches(family[:80], FAMILIES, n=3, cutoff=0.5)
    raise BadConfig(
        f"{fields.prefix}model_type {family[:80]!r} is not understood: {hint}",
        f"nearest known: {', '.join(near or sorted(FAMILIES))}",
        key=fields.prefix + "model_type",
    )
