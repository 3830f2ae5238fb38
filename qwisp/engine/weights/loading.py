"""A model ready to run: a folder, `org/name` from the local cache, or a bundled one by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import tiny_config
from qwisp.engine.weights.checkpoint import read_checkpoint
from qwisp.engine.weights.hub_cache import find_in_cache, is_hub_name
from qwisp.engine.weights.loaded import LoadedModel, made_model
from qwisp.engine.weights.random_weights import UNPACKED, random_packed_weights, random_weights
from qwisp.errors import BadConfig, BadInput
from qwisp.spec.data_files import data_path
from qwisp.spec.model import load_json

TINY_PREFIX = "tiny"
RANDOM_PREFIX = "random"
SMOLLM2 = "smollm2"


def load_decoder(source: str | Path, *, dtype: str | None = None, seed: int = 0) -> LoadedModel:
    """Return the model of a folder, of `org/name` in the local Hugging Face cache, of a bundled
    recall model, of `smollm2`, or of `tiny[:NAME]` or `random:CONFIG` (random weights of `seed`).

    `random:` takes any config.json, or a folder with one, and packs the weights in the bits that
    its `quantization` states. `dtype` is float32 for tiny models and the checkpoint's or config's
    own otherwise. Raises `BadInput` for
    what cannot be read, `BadConfig` for a family that is not run.
    """
    text = str(source)
    if text == TINY_PREFIX or text.startswith(f"{TINY_PREFIX}:"):
        return _tiny(text.partition(":")[2] or "hybrid_moe", dtype or "float32", seed)
    if text.startswith(f"{RANDOM_PREFIX}:"):
        return _random(text.partition(":")[2], dtype, seed)
    if text == SMOLLM2 and not Path(text).exists():
        from qwisp.engine.weights.smollm2 import load_smollm2

        return load_smollm2(dtype or "float32")
    folder = find_folder(text)
    in_cache = is_hub_name(text) and not Path(text).exists()
    return _from_folder(folder, dtype, name=text if in_cache else folder.resolve().name)


def find_folder(text: str) -> Path:
    """Return the folder that a model's name or path stands for.

    Raises `BadInput` for one that is nowhere.
    """
    if not text.strip() or "\0" in text:
        raise BadInput(f"model {text!r} is not a name", "give a folder or org/name")
    path = Path(text)
    try:
        if path.exists():
            return path
    except OSError as error:  # a name longer than the file system takes
        raise BadInput(f"model {text[:80]!r}: {error.strerror}", "give a folder") from None
    if (data_path("models", text) / "config.json").is_file():
        return data_path("models", text)
    if is_hub_name(text):
        return find_in_cache(text)
    raise BadInput(
        f"model {text[:200]!r} is no folder here, and no org/name of the local cache",
        "give a folder in the mlx-community layout, org/name, or tiny",
    )


def _tiny(name: str, dtype: str, seed: int) -> LoadedModel:
    config = {**tiny_config(name), "dtype": dtype}
    spec = read_decoder(config)
    weights = random_weights(spec, seed, dtype)
    return made_model(f"tiny:{name}", config, spec, weights, dtype)


def _random(text: str, dtype: str | None, seed: int) -> LoadedModel:
    config, path = load_json(find_folder(text), "config.json")
    if isinstance(config, Mapping) and isinstance(config.get("config"), Mapping):
        config = config["config"]  # a bundled one, beside its source
    if not isinstance(config, Mapping):
        raise BadConfig(f"{path} holds no JSON object", "give a Hugging Face config.json")
    inner = config.get("text_config")
    fields = {**config, **inner} if isinstance(inner, Mapping) else config
    kept = dtype or fields.get("dtype") or fields.get("torch_dtype") or "bfloat16"
    mlx_dtype(kept)
    spec = read_decoder(config)
    stated = config.get("quantization")
    packing = {"min_rows": UNPACKED}
    if isinstance(stated, Mapping):
        packing = {"bits": stated.get("bits", 4), "group_size": stated.get("group_size", 64)}
    weights = random_packed_weights(spec, seed, kept, **packing)
    name = path.parent.name if path.name == "config.json" else path.stem
    return made_model(f"{RANDOM_PREFIX}:{name}", config, spec, weights, kept)


def _from_folder(folder: Path, dtype: str | None, *, name: str) -> LoadedModel:
    config, path = load_json(folder, "config.json")
    if not isinstance(config, Mapping):
        raise BadConfig(f"{path} holds no JSON object", "give a Hugging Face config.json")
    spec = read_decoder(config)
    found = read_checkpoint(path.parent, config, spec)
    kept = dtype or _main_type(found.weights)
    weights = {name: _as_type(name, array, kept) for name, array in found.weights.items()}
    return made_model(
        name,
        config,
        replace(spec, is_tied=found.is_tied),
        weights,
        kept,
        folder=path.parent,
        skipped=found.skipped,
    )


def _main_type(weights: Mapping[str, mx.array]) -> str:
    """Return the type of the norms, which no quantisation touches."""
    kinds = [array.dtype for name, array in weights.items() if name.endswith("norm.weight")]
    return str(kinds[0]).removeprefix("mlx.core.") if kinds else "float32"


def _as_type(name: str, array: mx.array, dtype: str) -> mx.array:
    """Cast floats to the engine's type; packed words and `A_log` stay what they are."""
    if not mx.issubdtype(array.dtype, mx.floating) or name.endswith("A_log"):
        return array
    return array.astype(mlx_dtype(dtype))
