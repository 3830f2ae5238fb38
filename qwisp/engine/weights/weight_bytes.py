"""What weights occupy once they run, from names, shapes and types alone."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from qwisp.engine.cache.arena import mlx_dtype
from qwisp.engine.spec.decoder_spec import DecoderSpec

F32_BYTES = 4


def resident_bytes(spec: DecoderSpec, weights: Mapping[str, mx.array], dtype: str) -> int:
    """Return the bytes of a decoder's weights in the engine's type.

    Only shapes and types of `weights` are looked at. Packed words keep theirs; decay rates and
    convolution taps are fp32, and so are experts that a CPU multiplies unpacked. Beside them stand
    the scale of the embeddings and the frequencies of scaled rope.
    """
    own = mlx_dtype(dtype).size
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    total = sum(
        array.size * _item_bytes(name, array, own, on_cpu=on_cpu) for name, array in weights.items()
    )
    if spec.embed_scale != 1.0:
        total += own
    for block in spec.blocks:
        if block.attention is not None and block.attention.rope.scaling is not None:
            total += block.attention.rope.dims // 2 * F32_BYTES
    return total


def _item_bytes(name: str, array: mx.array, own: int, *, on_cpu: bool) -> int:
    if not mx.issubdtype(array.dtype, mx.floating):
        return array.dtype.size
    is_stack = array.ndim == 3 and name.endswith("_proj.weight")
    if name.endswith(("A_log", "conv1d.weight")) or (is_stack and on_cpu):
        return F32_BYTES
    return own
