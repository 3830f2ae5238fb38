"""Which sizes of a decoder the kernels can run: asked once, before anything is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qwisp.engine.spec.rope import ProportionalScaling, Rope, YarnScaling
from qwisp.errors import BadConfig
from qwisp.spec.layers import GatedDelta

if TYPE_CHECKING:
    from qwisp.engine.spec.decoder_spec import DecoderSpec

FP32_RANGE = (1.2e-38, 3.4e38)
"""Numbers outside become zero or infinity where the engine computes."""


def check_geometry(spec: DecoderSpec) -> None:
    """Raise `BadConfig` naming the key behind the first size that no kernel here takes.

    Sizes that the weights hold are compared with them when a checkpoint is read; these are the
    others, and those that would end the process instead of raising.
    """
    if spec.per_layer and spec.per_layer_vocab < spec.vocab:
        raise BadConfig(
            f"vocab_size_per_layer_input is {spec.per_layer_vocab}, vocab_size {spec.vocab}: the"
            " last tokens have no input of a layer's own",
            "give vocab_size_per_layer_input at least vocab_size",
            key="vocab_size_per_layer_input",
        )
    for block in spec.blocks:
        if isinstance(block.layer, GatedDelta):
            _check_kernel(block.layer.conv_kernel)
        elif block.attention is not None:
            _check_rope(block.attention.rope, block.layer.k_dim)


def _check_kernel(taps: int) -> None:
    if taps < 2:
        raise BadConfig(
            f"linear_conv_kernel_dim is {taps}: a convolution of {taps} tap has no tail to keep",
            "use a model with 2 taps or more (published ones have 4)",
            key="linear_conv_kernel_dim",
        )


def _check_rope(rope: Rope, head_dim: int) -> None:
    turned, share = rope.dims, "partial_rotary_factor"
    if isinstance(rope.scaling, ProportionalScaling):
        turned = rope.scaling.rotated_dims
    key = "head_dim" if turned == head_dim else share
    for dims in (rope.dims, turned):
        if dims < 2 or dims % 2:
            raise BadConfig(
                f"{key} turns {dims} of {head_dim} elements of a head, which are no pairs",
                f"give head_dim and {share} whose product is even and at least 2",
                key=key,
            )
    if isinstance(rope.scaling, YarnScaling) and rope.theta <= 1:
        raise BadConfig(
            f"rope_theta is {rope.theta}: yarn needs waves that grow",
            "give a base above 1 (published ones have 10000 or more)",
            key="rope_theta",
        )
