"""Which reader understands which `model_type`. One file per group of families, loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from qwisp.errors import BadConfig
from qwisp.spec.families.common import Blocks, context_tokens, element_bytes
from qwisp.spec.fields import Fields
from qwisp.spec.model import ModelSpec

FAMILIES: dict[str, str] = {
    **dict.fromkeys(("llama", "qwen3", "qwen3_moe", "generic"), "grouped"),
    **dict.fromkeys(("gemma3", "gemma3_text"), "gemma"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "gemma4"),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), "delta"
    ),
}
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


def read_config(config: Mapping[str, Any], *, name: str = "") -> ModelSpec:
    """Return the `ModelSpec` of a parsed config; see `ModelSpec.from_config`."""
    fields = _text_fields(config)
    family = fields.text("model_type")
    read = _reader(family, fields)
    blocks = read(fields)
    if not blocks.layers:
        raise fields.conflict("num_hidden_layers", "gives no layer at all")
    return ModelSpec(
        name=name or fields.text("_name_or_path", None) or family,
        family=family,
        layers=tuple(blocks.layers),
        draft_layers=tuple(blocks.draft),
        context_max_tokens=context_tokens(fields),
        hidden=fields.size("hidden_size", None),
        query_heads=fields.size("num_attention_heads", blocks.query_heads),
        vocab=fields.size("vocab_size", None),
        element_bytes=element_bytes(fields),
        notes=tuple(fields.notes),
        generic=blocks.generic,
    )


def _reader(family: str, fields: Fields) -> Callable[[Fields], Blocks]:
    module = FAMILIES.get(family)
    if module is None:
        near = get_close_matches(family[:80], FAMILIES, n=3, cutoff=0.5)
        raise BadConfig(
            f"{fields.prefix}model_type {family[:80]!r} is not understood",
            f"nearest known: {', '.join(near)}"
            if near
            else 'a plain grouped-attention model can be read with "model_type": "generic"',
            key=fields.prefix + "model_type",
        )
    return import_module(f"qwisp.spec.families.{module}").read
