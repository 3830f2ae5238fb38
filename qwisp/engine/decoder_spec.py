"""How a block computes, read from the same config as `ModelSpec`, which says what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qwisp.errors import BadConfig
from qwisp.spec.fields import Fields
from qwisp.spec.layers import FullAttention, GatedDelta, Layer, SlidingWindow
from qwisp.spec.model import ModelSpec

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of the first `dims` of a head; positions are multiplied by `scale`."""

    dims: int
    theta: float
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """Arithmetic of an attention block around the keys and values that its layer keeps."""

    heads: int
    scale: float
    rope: Rope
    has_qk_norm: bool = False
    has_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """`down(activation(gate(x)) * up(x))`."""

    intermediate: int
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """Top-k of `num_experts`; `shared_intermediate` is 0 where no shared expert stands beside."""

    num_experts: int
    top_k: int
    intermediate: int
    normalises: bool
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer: what it remembers (`layer`), how it attends (None for gated delta), its FFN."""

    layer: FullAttention | SlidingWindow | GatedDelta
    attention: AttentionRule | None
    ffn: DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder body.

    `prefix` leads every weight name. `norm_offset` is added to norm weights (gemma: 1), and
    `is_sandwiched` puts norms after mixer and FFN too. `embed_scale` multiplies embeddings.
    """

    family: str
    prefix: str
    hidden: int
    vocab: int
    eps: float
    blocks: tuple[Block, ...]
    is_tied: bool
    norm_offset: float = 0.0
    is_sandwiched: bool = False
    embed_scale: float = 1.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DecoderSpec:
        """Return the decoder of a Hugging Face config dict.

        Raises `BadConfig` naming the family or key that this engine does not run.

        >>> spec = DecoderSpec.from_config({"model_type": "llama", "hidden_size": 64,
        ...     "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        ...     "vocab_size": 256, "rms_norm_eps": 1e-5})
        >>> spec.blocks[0].attention.rope.dims, spec.blocks[0].ffn.intermediate
        (16, 128)
        """
        model = ModelSpec.from_config(config)
        inner = config.get("text_config")
        f = Fields({**config, **inner}) if isinstance(inner, Mapping) else Fields(config)
        if model.family not in _READERS:
            raise BadConfig(
                f"family {model.family} is not run by the lane engine",
                f"use one of {', '.join(sorted(_READERS))}",
                key="model_type",
            )
        return _READERS[model.family](model, f, nested=isinstance(inner, Mapping))


def _rope(f: Fields, head_dim: int, *, default_theta: float, partial: float = 1.0) -> Rope:
    nested = f.raw("rope_parameters")
    values = nested if isinstance(nested, Mapping) else {}
    scaling = values or f.raw("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear"):
        raise BadConfig(
            f"rope type {kind!r} is not run by the lane engine",
            "use a model with default or linear rope",
            key="rope_scaling",
        )
    scale = 1.0 / float(scaling.get("factor", 1.0)) if kind == "linear" else 1.0
    theta = float(values.get("rope_theta") or f.raw("rope_theta") or default_theta)
    share = float(values.get("partial_rotary_factor") or f.raw("partial_rotary_factor") or partial)
    return Rope(dims=int(head_dim * share), theta=theta, scale=scale)


def _heads(model: ModelSpec, layer: Layer) -> tuple[int, int]:
    """Return query heads and key size; an engine layer keeps keys and values of one size."""
    assert isinstance(layer, FullAttention | SlidingWindow)
    if layer.k_dim != layer.v_dim:
        raise BadConfig(
            f"keys of {layer.k_dim} and values of {layer.v_dim} elements differ",
            "use a model whose keys and values have one size",
            key="head_dim",
        )
    return int(model.query_heads or 0), layer.k_dim


def _is_sparse(f: Fields, index: int) -> bool:
    if f.count("num_experts", 0) == 0 or index in (f.raw("mlp_only_layers") or ()):
        return False
    return (index + 1) % f.size("decoder_sparse_step", 1) == 0


def _ffn(f: Fields, index: int, *, normalises: bool, activation: Activation) -> DenseFfn | MoeFfn:
    if not _is_sparse(f, index):
        return DenseFfn(intermediate=f.size("intermediate_size"), activation=activation)
    asked = f.raw("norm_topk_prob")
    return MoeFfn(
        num_experts=f.size("num_experts"),
        top_k=f.size("num_experts_per_tok"),
        intermediate=f.size("moe_intermediate_size"),
        normalises=normalises if asked is None else bool(asked),
        shared_intermediate=f.count("shared_expert_intermediate_size", 0),
    )


def _eps(f: Fields) -> float:
    return float(f.raw("rms_norm_eps") or 1e-6)


def _tied(f: Fields, default: bool) -> bool:
    value = f.raw("tie_word_embeddings")
    return default if value is None else bool(value)


def _grouped(model: ModelSpec, f: Fields, *, nested: bool) -> DecoderSpec:
    """llama, qwen3, qwen3_moe: full attention everywhere."""
    del nested
    has_qk_norm = model.family.startswith("qwen3")
    blocks = []
    for index, layer in enumerate(model.layers):
        heads, dim = _heads(model, layer)
        rule = AttentionRule(
            heads=heads,
            scale=dim**-0.5,
            rope=_rope(f, dim, default_theta=1e4),
            has_qk_norm=has_qk_norm,
        )
        ffn = _ffn(f, index, normalises=False, activation="silu")
        blocks.append(Block(layer=layer, attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="",
        hidden=f.size("hidden_size"),
        vocab=f.size("vocab_size"),
        eps=_eps(f),
        blocks=tuple(blocks),
        is_tied=_tied(f, model.family == "llama"),
    )


def _delta(model: ModelSpec, f: Fields, *, nested: bool) -> DecoderSpec:
    """qwen3_5 and qwen3_5_moe: gated delta, and gated attention with partial rope."""
    del nested
    blocks = []
    for index, layer in enumerate(model.layers):
        rule = None
        if not isinstance(layer, GatedDelta):
            heads, dim = _heads(model, layer)
            rope = _rope(f, dim, default_theta=1e5, partial=0.25)
            rule = AttentionRule(
                heads=heads, scale=dim**-0.5, rope=rope, has_qk_norm=True, has_gate=True
            )
        ffn = _ffn(f, index, normalises=True, activation="silu")
        blocks.append(Block(layer=layer, attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="language_model.",
        hidden=f.size("hidden_size"),
        vocab=f.size("vocab_size"),
        eps=_eps(f),
        blocks=tuple(blocks),
        is_tied=_tied(f, False),
    )


def _gemma3(model: ModelSpec, f: Fields, *, nested: bool) -> DecoderSpec:
    """gemma3_text: sliding windows, two rope bases, norms around everything."""
    hidden = f.size("hidden_size", 1152)
    blocks = []
    for layer in model.layers:
        heads, dim = _heads(model, layer)
        local = Rope(dims=dim, theta=float(f.raw("rope_local_base_freq") or 1e4))
        rule = AttentionRule(
            heads=heads,
            scale=float(f.raw("query_pre_attn_scalar") or 256) ** -0.5,
            rope=local if isinstance(layer, SlidingWindow) else _rope(f, dim, default_theta=1e6),
            has_qk_norm=True,
        )
        ffn = DenseFfn(intermediate=f.size("intermediate_size", 6912), activation="gelu_tanh")
        blocks.append(Block(layer=layer, attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="language_model." if nested else "",
        hidden=hidden,
        vocab=f.size("vocab_size", 262144),
        eps=_eps(f),
        blocks=tuple(blocks),
        is_tied=_tied(f, True),
        norm_offset=1.0,
        is_sandwiched=True,
        embed_scale=hidden**0.5,
    )


_READERS = {
    "llama": _grouped,
    "qwen3": _grouped,
    "qwen3_moe": _grouped,
    "qwen3_5": _delta,
    "qwen3_5_text": _delta,
    "qwen3_5_moe": _delta,
    "qwen3_5_moe_text": _delta,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
}
