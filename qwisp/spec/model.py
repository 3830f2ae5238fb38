"""`ModelSpec`: what a model must remember, layer by layer, read from its own `config.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qwisp.errors import BadConfig, BadInput
from qwisp.spec.families import read_config
from qwisp.spec.layers import (
    FullAttention,
    Layer,
    Mla,
    Parallel,
    PooledAttention,
    Shared,
    SlidingWindow,
    Stateless,
)

MAX_CONFIG_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model. `layers` has an entry per block, in order; `draft_layers` those of a draft head.

    `element_bytes` is the width of the model's own number type, which caches take unless an engine
    says otherwise. `generic` marks a family that was read by the grouped-attention fallback;
    `notes` says what was assumed. Fields that a source does not give are None.
    """

    name: str
    family: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    context_max_tokens: int | None = None
    hidden: int | None = None
    query_heads: int | None = None
    vocab: int | None = None
    element_bytes: int = 2
    source: str = ""
    notes: tuple[str, ...] = ()
    generic: bool = False

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any], *, name: str = "") -> ModelSpec:
        """Return the spec of a Hugging Face config: a dict, a `config.json`, or its folder.

        Raises `BadConfig` naming the key for a family that is not understood or a config that
        contradicts itself, `BadInput` for a path that cannot be read.

        >>> ModelSpec.from_config({"model_type": "llama", "num_hidden_layers": 2,
        ...     "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}).caches[0]
        FullAttention(kv_heads=2, k_dim=16, v_dim=16)
        """
        if isinstance(config, Mapping):
            return cls(**read_config(config, name=name))
        values, path = load_json(Path(config), "config.json")
        if not isinstance(values, Mapping):
            raise BadConfig(f"{path} holds no JSON object", "give a Hugging Face config.json")
        spec = cls(**read_config(values, name=name or path.parent.name))
        return replace(spec, source=spec.source or str(path))

    @property
    def caches(self) -> tuple[Layer, ...]:
        """Everything that remembers something: parallel blocks taken apart, the empty left out."""
        return tuple(_flatten(self.layers))

    @property
    def draft_caches(self) -> tuple[Layer, ...]:
        """The same for the draft layers."""
        return tuple(_flatten(self.draft_layers))

    @property
    def attention_caches(self) -> tuple[Layer, ...]:
        """The caches that grow with the context."""
        kinds = FullAttention | SlidingWindow | Mla | PooledAttention
        return tuple(layer for layer in self.caches if isinstance(layer, kinds))

    def groups(self) -> tuple[tuple[Layer, int], ...]:
        """Return each distinct layer with how often it occurs, in order of first appearance."""
        counts: dict[Layer, int] = {}
        for layer in self.layers:
            counts[layer] = counts.get(layer, 0) + 1
        return tuple(counts.items())


def _flatten(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    for layer in layers:
        if isinstance(layer, Parallel):
            yield from layer.parts
        elif not isinstance(layer, Shared | Stateless):
            yield layer


def load_json(path: Path, file_name: str) -> tuple[Any, Path]:
    """Return what a JSON file (or `file_name` in a folder) holds, and the file's path."""
    if path.is_dir():
        path = path / file_name
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise BadInput(f"{path} has {size:,} bytes", "a model config is smaller than 16 MiB")
        return json.loads(path.read_text("utf-8")), path
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist", f"give a {file_name} or its folder") from None
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}", f"give a {file_name} or its folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path} is not JSON: {error}", "give a Hugging Face config.json") from None
