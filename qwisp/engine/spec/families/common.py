"""What the decoder readers share: rotary embeddings, head sizes, feed-forward blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qwisp.engine.spec.decoder_spec import DenseFfn, MoeFfn
from qwisp.engine.spec.geometry import FP32_RANGE
from qwisp.engine.spec.rope import (
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from qwisp.errors import BadConfig
from qwisp.spec.fields import Fields
from qwisp.spec.layers import FullAttention, GatedDelta, Layer, SlidingWindow
from qwisp.spec.model import ModelSpec

_YARN = ("yarn", "deepseek_yarn", "telechat3-yarn")
_PLAIN = ("default", "mrope", "linear")  # text positions are equal on all three axes of mrope


def refuse(key: str, problem: str, todo: str) -> BadConfig:
    """Return the error that names a key of the config."""
    return BadConfig(f"{key} {problem}", todo, key=key)


def positive_number(f: Fields, key: str, default: float | None = None) -> float:
    """Return a number above zero that fp32 can hold; raises `BadConfig` naming the key."""
    value = f.raw(key)
    if value is None and default is not None:
        return default
    good = isinstance(value, int | float) and not isinstance(value, bool)
    least, most = FP32_RANGE
    if not good or not least < value < most:
        problem = f"is {str(value)[:40]}, not a number above zero that fp32 holds"
        raise refuse(f.prefix + key, problem, f"give one between {least} and {most}")
    return float(value)


def switch(f: Fields, key: str) -> bool:
    """Return a flag that is true where it is absent; null is refused: readers disagree about it."""
    if key in f.values and f.raw(key) is None:
        raise refuse(f.prefix + key, "is null, true to some and false to others", "say which")
    return f.flag(key, True)


def read_rope(
    f: Fields,
    head_dim: int,
    *,
    default_theta: float,
    partial: float = 1.0,
    layer_type: str = "",
) -> Rope:
    """Return the rotary embedding of a config; `layer_type` picks one of nested ones.

    Raises `BadConfig` for a kind of scaling that is not run.
    """
    nested = f.raw("rope_parameters")
    if layer_type and isinstance(nested, Mapping):
        nested = _of_layer_type(nested, layer_type)
    scaling: Any = nested if isinstance(nested, Mapping) else f.raw("rope_scaling")
    s = Fields(scaling if isinstance(scaling, Mapping) else {}, "rope.")
    named = (s.raw("type"), s.raw("rope_type"), "default")
    kind = next(word for word in named if word is not None)
    theta = positive_number(s, "rope_theta", positive_number(f, "rope_theta", default_theta))
    share = positive_number(
        s, "partial_rotary_factor", positive_number(f, "partial_rotary_factor", partial)
    )
    if share > 1:
        raise refuse("partial_rotary_factor", f"is {share}", "give a share of at most 1")
    traditional = f.flag("rope_traditional", False)
    if kind == "proportional":
        rotated = ProportionalScaling(
            rotated_dims=int(head_dim * share), factor=positive_number(s, "factor", 1.0)
        )
        return Rope(dims=head_dim, theta=theta, is_traditional=traditional, scaling=rotated)
    dims = int(head_dim * share)
    return Rope(
        dims=dims,
        theta=theta,
        scale=1 / positive_number(s, "factor") if kind == "linear" else 1.0,
        is_traditional=traditional,
        scaling=_scaling(kind, s, f, dims),
    )


def _of_layer_type(nested: Mapping[str, Any], layer_type: str) -> Mapping[str, Any]:
    """Return the parameters of a layer type, or `nested` itself where they are the same for all."""
    if layer_type not in nested and not any(isinstance(v, Mapping) for v in nested.values()):
        return nested
    own = nested.get(layer_type)
    if not isinstance(own, Mapping):
        key = f"rope_parameters.{layer_type}"
        raise refuse(key, f"is {str(own)[:40]}, not an object", "give it like the other one")
    return own


def _scaling(kind: Any, s: Fields, f: Fields, dims: int) -> Scaling | None:
    if kind in _PLAIN:
        return None
    original = "original_max_position_embeddings"
    if kind == "llama3":
        return Llama3Scaling(
            factor=positive_number(s, "factor"),
            low_freq_factor=positive_number(s, "low_freq_factor", 1.0),
            high_freq_factor=positive_number(s, "high_freq_factor", 4.0),
            original_tokens=s.size(original, 8192),
        )
    if kind in _YARN:
        return _yarn(s, original)
    if kind == "longrope":
        return _longrope(s, f, dims, original)
    raise refuse(
        "rope_scaling",
        f"has type {str(kind)[:40]!r}, which the lane engine does not run",
        "use a model with default, linear, llama3, yarn, longrope or proportional rope",
    )


def _yarn(s: Fields, original: str) -> YarnScaling:
    made = YarnScaling(
        factor=positive_number(s, "factor"),
        original_tokens=s.size(original, 4096),
        beta_fast=positive_number(s, "beta_fast", 32.0),
        beta_slow=positive_number(s, "beta_slow", 1.0),
        mscale=_number_or_zero(s, "mscale", 1.0),
        mscale_all_dim=_number_or_zero(s, "mscale_all_dim", 0.0),
    )
    growth = positive_number(s, "attention_factor", made.growth)
    if not math.isclose(growth, made.growth, rel_tol=1e-6):
        raise refuse(
            "rope_scaling.attention_factor",
            f"is {growth}, the lane engine runs {made.growth:.6f}",
            "leave it out, or use another model",
        )
    return made


def _number_or_zero(s: Fields, key: str, default: float) -> float:
    value = s.raw(key)
    return 0.0 if value == 0 and not isinstance(value, bool) else positive_number(s, key, default)


def _longrope(s: Fields, f: Fields, dims: int, original: str) -> LongScaling:
    tokens = s.size(original, f.size(original, None))
    if tokens is None:
        raise refuse(original, "is missing", "add it to the config")
    if tokens < 2:
        raise refuse(original, f"is {tokens}", "give the tokens the model was first trained on")
    factors = s.items("long_factor")
    if len(factors) != dims // 2 or not all(isinstance(x, int | float) and x > 0 for x in factors):
        raise refuse(
            "rope_scaling.long_factor",
            f"has {len(factors)} entries for {dims // 2} pairs",
            "give a number above zero for each pair",
        )
    stretch = f.size("max_position_embeddings", 131072) / tokens
    growth = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(tokens))
    return LongScaling(factors=tuple(map(float, factors)), growth=growth)


def query_heads(model: ModelSpec, layer: Layer) -> tuple[int, int]:
    """Return query heads and key size; an engine layer keeps keys and values of one size."""
    assert isinstance(layer, FullAttention | SlidingWindow)
    if layer.k_dim != layer.v_dim:
        raise refuse(
            "head_dim",
            f"gives keys of {layer.k_dim} and values of {layer.v_dim} elements",
            "use a model whose keys and values have one size",
        )
    return int(model.query_heads or 0), layer.k_dim


def engine_layer(layer: Layer) -> FullAttention | SlidingWindow | GatedDelta:
    """Return the layer, refused if the engine has no mixer for it."""
    if not isinstance(layer, FullAttention | SlidingWindow | GatedDelta):
        raise refuse(
            "layer_types",
            f"gives a {type(layer).__name__} layer, which the lane engine does not run",
            "use a model of attention and gated-delta layers",
        )
    return layer


def read_silu_ffn(f: Fields, index: int, *, normalises: bool) -> DenseFfn | MoeFfn:
    """Return the feed-forward block of a llama- or qwen-like layer.

    `normalises` is what the family does where the config says nothing of `norm_topk_prob`.
    """
    check_word(f, "hidden_act", ("silu", "swish"))
    if not _is_sparse(f, index):
        bias = f.flag("mlp_bias", False)
        return DenseFfn(intermediate=f.size("intermediate_size"), has_bias=bias)
    experts, top_k = f.size("num_experts"), f.size("num_experts_per_tok")
    check_top_k("num_experts_per_tok", top_k, experts)
    return MoeFfn(
        num_experts=experts,
        top_k=top_k,
        intermediate=f.size("moe_intermediate_size"),
        normalises=switch(f, "norm_topk_prob") if normalises else f.flag("norm_topk_prob", False),
        shared_intermediate=f.count("shared_expert_intermediate_size", 0),
    )


def check_word(f: Fields, key: str, known: tuple[object, ...]) -> None:
    """Refuse a key whose value would change the arithmetic into what the engine does not run."""
    value = f.raw(key)
    if value is not None and not any(value is one or value == one for one in known):
        shown = ", ".join(map(str, known))
        raise refuse(key, f"is {str(value)[:40]}, the engine runs {shown}", "use another model")


def check_top_k(key: str, top_k: int, num_experts: int) -> None:
    """Refuse a choice of more experts than there are."""
    if top_k > num_experts:
        raise refuse(key, f"is {top_k} of {num_experts} experts", "correct one of the two")


def _is_sparse(f: Fields, index: int) -> bool:
    if f.count("num_experts", 0) == 0:
        return False
    if f.has("mlp_only_layers") and index in f.sizes("mlp_only_layers"):
        return False
    return (index + 1) % f.size("decoder_sparse_step", 1) == 0
