"""A decoder with its weights in memory, whatever they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from qwisp.engine.model.decoder import Decoder
from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.weights.weight_shapes import resident_bytes
from qwisp.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder with its weights, and the config both its descriptions were read from.

    `folder` is where its tokenizer may lie, `weight_bytes` what its weights should occupy, computed
    from the checkpoint's shapes before anything was allocated. `skipped` counts weights of other
    towers and heads beside the language model, by the first part of their names.
    """

    name: str
    config: Mapping[str, Any]
    spec: ModelSpec
    decoder: Decoder
    dtype: str
    weight_bytes: int
    folder: Path | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)


def made_model(
    name: str,
    config: Mapping[str, Any],
    spec: DecoderSpec,
    weights: Mapping[str, mx.array],
    dtype: str,
    *,
    folder: Path | None = None,
    skipped: Mapping[str, int] | None = None,
) -> LoadedModel:
    """Return a model of weights that lie in memory or will once they are asked for."""
    predicted = resident_bytes(spec, weights, dtype)
    decoder = Decoder(spec, weights, dtype)
    mx.eval(decoder.arrays)
    return LoadedModel(
        name=name,
        config=config,
        spec=ModelSpec.from_config({**config, "dtype": dtype}, name=name),
        decoder=decoder,
        dtype=dtype,
        weight_bytes=predicted,
        folder=folder,
        skipped=skipped or {},
    )
