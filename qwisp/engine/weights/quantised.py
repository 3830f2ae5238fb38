"""Affine-quantised weights: which modules are packed, and whether shapes and config agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from qwisp.errors import BadConfig, BadInput

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
_TODO = "use an affine-quantised checkpoint in the mlx-community layout"


def packed_stems(weights: Mapping[str, mx.array]) -> set[str]:
    """Return the modules that carry scales."""
    return {name.removesuffix(".scales") for name in weights if name.endswith(".scales")}


def check_method(config: Mapping[str, Any]) -> None:
    """Refuse a way of quantising that is not read: another format's, or a mode but affine."""
    for key in ("quantization", "quantization_config"):
        asked = config.get(key)
        if asked is None:
            continue
        if not isinstance(asked, Mapping):
            raise BadConfig(f"{key} is {str(asked)[:40]}, not an object", _TODO, key=key)
        method = asked.get("quant_method")
        if method is not None and key not in ("quantization",) and "bits" not in asked:
            raise BadConfig(f"quantisation by {str(method)[:20]} is not read", _TODO, key=key)
        settings = [asked, *(value for value in asked.values() if isinstance(value, Mapping))]
        for one in settings:
            if one.get("mode", "affine") != "affine":
                mode = str(one["mode"])[:20]
                raise BadConfig(f"quantisation mode {mode} is not read", _TODO, key=key)


def check_quantised(
    weights: Mapping[str, mx.array],
    stem: str,
    shape: tuple[int, ...],
    config: Mapping[str, Any],
) -> None:
    """Check that the packed words, scales and biases of a module hold a matrix of `shape`.

    Bits and group size follow from the shapes; where the config states them too, they must agree.
    """
    parts = {part: weights.get(f"{stem}.{part}") for part in ("weight", "scales", "biases")}
    for part, array in parts.items():
        if array is None:
            raise BadInput(f"weight {stem}.{part} is missing", _TODO)
    words, scales, biases = (parts[part] for part in ("weight", "scales", "biases"))
    assert words is not None
    assert scales is not None
    assert biases is not None
    if len(shape) < 2 or stem.endswith("conv1d") or words.dtype != mx.uint32:
        raise BadInput(f"weight {stem} has scales but is no packed matrix", _TODO)
    shapes = f"weight {words.shape}, scales {scales.shape}, biases {biases.shape}"
    wrong = BadInput(
        f"{stem} has {shapes}, which hold no matrix of {shape}",
        "the config does not belong to these weights",
    )
    if words.shape[:-1] != shape[:-1] or scales.shape[:-1] != shape[:-1]:
        raise wrong
    if scales.shape != biases.shape or not scales.shape[-1] or shape[-1] % scales.shape[-1]:
        raise wrong
    group_size, rest = shape[-1] // scales.shape[-1], words.shape[-1] * 32 % shape[-1]
    bits = words.shape[-1] * 32 // shape[-1]
    if rest or bits not in BITS or group_size not in GROUP_SIZES:
        raise wrong
    _check_stated(stem, bits, group_size, config)


def _check_stated(stem: str, bits: int, group_size: int, config: Mapping[str, Any]) -> None:
    stated = config.get("quantization") or config.get("quantization_config")
    if not isinstance(stated, Mapping):
        return
    own = next((stated[name] for name in _spellings(stem) if name in stated), None)
    if own is False:
        raise BadInput(f"{stem} has scales, the config says it is not quantised", _TODO)
    if not isinstance(own, Mapping):
        own = stated
    for key, value in (("bits", bits), ("group_size", group_size)):
        if own.get(key, value) != value:
            raise BadInput(
                f"{stem} has {key} {value} by its shapes, {str(own[key])[:20]} by the config",
                "the config does not belong to these weights",
            )


def _spellings(stem: str) -> tuple[str, ...]:
    """Return how a config may call a module: with the tower's name or without."""
    bare = stem.removeprefix("language_model.")
    return stem, bare, f"language_model.{bare}"
