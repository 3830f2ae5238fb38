"""A model ready to run: from a folder in the mlx-community layout, or a tiny random one by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from qwisp.engine.arena import mlx_dtype
from qwisp.engine.decoder import Decoder
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.random_weights import random_weights
from qwisp.engine.tiny import tiny_config
from qwisp.errors import BadInput
from qwisp.spec.model import ModelSpec, load_json

TINY_PREFIX = "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder with its weights, and the config both its descriptions were read from.

    `skipped` counts weights of other towers that stood beside the language model.
    """

    name: str
    config: Mapping[str, Any]
    spec: ModelSpec
    decoder: Decoder
    weights: Mapping[str, mx.array]
    dtype: str
    skipped: int = 0


def load_model(source: str | Path, *, dtype: str | None = None, seed: int = 0) -> LoadedModel:
    """Return the model of a folder, or of `tiny` or `tiny:NAME` (random weights of `seed`).

    `dtype` is float32 for tiny models and the checkpoint's own otherwise. Raises `BadInput` for
    what cannot be read, `BadConfig` for a family that is not run.
    """
    text = str(source)
    if dtype is not None:
        mlx_dtype(dtype)  # refuses a type that is not run
    if text == TINY_PREFIX or text.startswith(f"{TINY_PREFIX}:"):
        name = text.partition(":")[2] or "hybrid_moe"
        config = {**tiny_config(name), "dtype": dtype or "float32"}
        decoder_spec = DecoderSpec.from_config(config)
        weights = random_weights(decoder_spec, seed, dtype or "float32")
        return _loaded(f"tiny:{name}", config, weights, dtype or "float32", 0)
    folder = Path(source)
    config, path = load_json(folder, "config.json")
    files = sorted(path.parent.glob("*.safetensors"))
    if not files:
        raise BadInput(
            f"{path.parent} holds no safetensors file",
            "give a folder in the mlx-community layout, or tiny",
        )
    found: dict[str, mx.array] = {}
    for file in files:
        found.update(mx.load(str(file)))
    prefix = DecoderSpec.from_config(config).prefix
    own = {name: array for name, array in found.items() if name.startswith(prefix)}
    kept = dtype or _main_type(own)
    own = {name: _as_type(name, array, kept) for name, array in own.items()}
    return _loaded(path.parent.name, config, own, kept, len(found) - len(own))


def _loaded(
    name: str,
    config: Mapping[str, Any],
    weights: Mapping[str, mx.array],
    dtype: str,
    skipped: int,
) -> LoadedModel:
    return LoadedModel(
        name=name,
        config=config,
        spec=ModelSpec.from_config({**config, "dtype": dtype}, name=name),
        decoder=Decoder(DecoderSpec.from_config(config), weights, dtype),
        weights=weights,
        dtype=dtype,
        skipped=skipped,
    )


def _main_type(weights: Mapping[str, mx.array]) -> str:
    for name in weights:
        if name.endswith("norm.weight"):
            return str(weights[name].dtype).removeprefix("mlx.core.")
    return "float32"


def _as_type(name: str, array: mx.array, dtype: str) -> mx.array:
    """Cast floats to the engine's type; packed words and `A_log` stay what they are."""
    if not mx.issubdtype(array.dtype, mx.floating) or name.endswith("A_log"):
        return array
    return array.astype(mlx_dtype(dtype))
