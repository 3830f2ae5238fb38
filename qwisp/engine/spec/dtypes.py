"""Number types by name, and the raw words of an array."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from qwisp.errors import BadInput

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def mlx_dtype(name: str) -> mx.Dtype:
    """Return MLX's type of that name."""
    if name not in _DTYPES:
        raise BadInput(f"type {name!r} is not run", f"use one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def raw_words(x: mx.array) -> np.ndarray:
    """Return the bits of an array as unsigned words of its own size, copied."""
    return np.array(x.view(mx.uint32 if x.dtype.size == 4 else mx.uint16))
