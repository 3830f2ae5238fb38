"""How a block computes, read from the same config as `ModelSpec`, which says what it remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwisp.engine.spec.rope import Rope
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """Arithmetic of an attention block around the keys and values that its layer keeps.

    `has_value_norm` normalises values without a weight; `keys_are_values` takes them from the key
    projection.
    """

    heads: int
    scale: float
    rope: Rope
    has_qk_norm: bool = False
    has_gate: bool = False
    has_bias: bool = False
    has_value_norm: bool = False
    keys_are_values: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """`down(activation(gate(x)) * up(x))`."""

    intermediate: int
    activation: Activation = "silu"
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """Top-k of `num_experts`; `shared_intermediate` is 0 where no shared expert stands beside."""

    num_experts: int
    top_k: int
    intermediate: int
    normalises: bool
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFfn:
    """A dense block and experts side by side, each behind and before norms of its own (gemma 4).

    Experts are chosen by raw scores; the softmax runs over the chosen ones, and each expert's
    weight is multiplied by a factor of its own.
    """

    dense: DenseFfn
    num_experts: int
    top_k: int
    intermediate: int


Ffn = DenseFfn | MoeFfn | TwinFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer: what it remembers (`layer`), how it attends (None for gated delta), its FFN.

    `source` is the block whose keys and values this one reads; it then keeps none itself, and
    `layer` is that block's.
    """

    layer: FullAttention | SlidingWindow | GatedDelta
    attention: AttentionRule | None
    ffn: Ffn
    source: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder body.

    `prefix` leads every weight name. `norm_offset` is added to norm weights (gemma 3: 1), and
    `is_sandwiched` puts norms after mixer and FFN too. `embed_scale` multiplies embeddings, rounded
    to bf16 where `rounds_embed_scale`. `logit_cap` bends logits into (-cap, cap); `per_layer` is
    the width of an input of every layer's own (0: none); `has_layer_scalar` multiplies what a layer
    returns; `clips_residual` keeps fp16 sums finite.
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
    rounds_embed_scale: bool = False
    logit_cap: float | None = None
    per_layer: int = 0
    per_layer_vocab: int = 0
    has_layer_scalar: bool = False
    clips_residual: bool = False
