"""The weights of a folder under the names that the decoder reads, each checked for its shape."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from safetensors import SafetensorError, safe_open

from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.weights.quantised import check_method, check_quantised, packed_stems
from qwisp.engine.weights.qwen3_next_layout import split_fused
from qwisp.engine.weights.weight_shapes import weight_shapes
from qwisp.errors import BadInput

_NESTED = "language_model."
_UNUSED = ("rotary_emb.inv_freq", "input_max", "input_min", "output_max", "output_min")
_SHARED = (".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.")
MAX_NAMED = 3
AGAIN = "download or convert the checkpoint again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Arrays by the decoder's names, not evaluated yet.

    `skipped` counts weights of other towers and heads by the first part of their names.
    `is_tied` says that the output map is the embedding.
    """

    weights: Mapping[str, mx.array]
    skipped: Mapping[str, int]
    is_tied: bool


def read_checkpoint(folder: Path, config: Mapping[str, Any], spec: DecoderSpec) -> Checkpoint:
    """Return the weights that `spec` needs from the safetensors files of a folder.

    Raises `BadInput` naming the file or weight that is missing, unexpected or of a wrong shape.
    """
    check_method(config)
    own, skipped = _own_names(_load(folder), spec)
    own = split_fused(own, spec)
    head = f"{spec.prefix}lm_head"
    is_tied = spec.is_tied
    if spec.family.startswith("gemma3"):
        is_tied = f"{head}.weight" not in own  # the family's configs do not say
    if is_tied:
        own = {name: array for name, array in own.items() if not name.startswith(f"{head}.")}
    _check(own, spec, config, is_tied=is_tied)
    return Checkpoint(weights=own, skipped=dict(skipped), is_tied=is_tied)


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: those that its index names, else all.

    Raises `BadInput` where there is none, or one that the index names is missing.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BadInput(
                f"{folder} holds no safetensors file",
                "give a folder in the mlx-community layout (pickled weights are never read)",
            )
        return files
    try:
        named = json.loads(index.read_text("utf-8"))["weight_map"].values()
        names = sorted(set(map(str, named)))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError) as error:
        raise BadInput(f"{index} is no index of weights: {error}", AGAIN) from None
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise BadInput(f"{index} names {name[:80]}, which is not in {folder}", AGAIN)
    return [folder / name for name in names]


def tensor_names(path: Path) -> set[str]:
    """Return the names of a safetensors file, whose header was held against its bytes.

    Raises `BadInput` for a file that is not one, is cut short, has gaps or overlaps, or names a
    tensor twice (the reader would keep the last one without a word).
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
        with path.open("rb") as file:
            text = file.read(int.from_bytes(file.read(8), "little"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}", AGAIN) from None
    except SafetensorError as error:
        what = f"{path}, {path.stat().st_size:,} bytes, is not a whole safetensors file: {error}"
        raise BadInput(what[:400], AGAIN) from None
    counts = Counter(json.loads(text, object_pairs_hook=_keys))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise BadInput(f"{path} has two tensors called {min(twice)[:60]}", AGAIN)
    return names


def _keys(pairs: list[tuple[str, Any]]) -> list[str]:
    return [key for key, _ in pairs]


def _load(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for path in checkpoint_files(folder):
        names = tensor_names(path)
        twice = names & found.keys()
        if twice:
            raise BadInput(f"{path}: {min(twice)} stands in another file too", AGAIN)
        if not names:
            continue
        try:
            arrays = mx.load(str(path))
        except (RuntimeError, ValueError) as error:
            raise BadInput(f"{path} cannot be read: {str(error)[:200]}", AGAIN) from None
        assert isinstance(arrays, dict)
        found.update(arrays)
    return found


def _own_names(
    found: Mapping[str, mx.array], spec: DecoderSpec
) -> tuple[dict[str, mx.array], Counter[str]]:
    """Return the language model's weights under the spec's prefix, and what was skipped."""
    nested = any(name.startswith(f"{_NESTED}model.") for name in found)
    own: dict[str, mx.array] = {}
    skipped: Counter[str] = Counter()
    shared = {
        f"model.layers.{i}{part}"
        for i, block in enumerate(spec.blocks)
        if block.source is not None
        for part in _SHARED
    }
    for name, array in found.items():
        bare = name.removeprefix(_NESTED) if nested else name
        is_own = bare.startswith(("model.", "lm_head.")) and (not nested or bare != name)
        if not is_own or bare.startswith("model.visual."):
            skipped[name.split(".")[0]] += 1
        elif any(part in bare for part in _UNUSED) or any(bare.startswith(x) for x in shared):
            skipped["unused"] += 1
        else:
            own[spec.prefix + bare] = array
    return own, skipped


def _check(
    own: Mapping[str, mx.array], spec: DecoderSpec, config: Mapping[str, Any], *, is_tied: bool
) -> None:
    expected = dict(weight_shapes(spec))
    if is_tied:
        expected.pop(f"{spec.prefix}lm_head.weight", None)
    else:
        expected[f"{spec.prefix}lm_head.weight"] = (spec.vocab, spec.hidden)
    packed = packed_stems(own)
    for name, shape in expected.items():
        stem = name.removesuffix(".weight")
        if stem in packed:
            check_quantised(own, stem, shape, config)
        elif name not in own:
            raise _missing(name, own, expected)
        else:
            _check_plain(name, own[name], shape)
    known = expected.keys() | {
        f"{stem}.{part}"
        for stem in packed
        if f"{stem}.weight" in expected
        for part in ("scales", "biases")
    }
    extra = sorted(own.keys() - known)
    if extra:
        raise BadInput(
            f"{len(extra)} weights are not known to {spec.family}: {_some(extra)}",
            "the config does not belong to these weights, or the family has grown: refused, "
            "because what they do would be left out",
        )


def _missing(name: str, own: Mapping[str, mx.array], expected: Mapping[str, Any]) -> BadInput:
    absent = [other for other in expected if other not in own]
    if any(".mlp.experts." in other for other in own):
        return BadInput(
            f"weight {name} is missing, the experts stand one by one",
            "convert the checkpoint with `mlx_lm.convert`",
        )
    return BadInput(
        f"weight {name} is missing ({len(absent)} of {len(expected)} not found)",
        "use a complete checkpoint in the mlx-community layout",
    )


def _check_plain(name: str, array: mx.array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        hint = "the config does not belong to these weights"
        if name.endswith("conv1d.weight") and array.ndim == 3 and array.shape[1] == 1:
            hint = "convert the checkpoint with `mlx_lm.convert`: it has another layout"
        raise BadInput(f"weight {name} has shape {array.shape}, the config gives {shape}", hint)
    if not mx.issubdtype(array.dtype, mx.floating):
        kind = str(array.dtype).removeprefix("mlx.core.")
        raise BadInput(f"weight {name} is {kind} without scales", AGAIN)


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:MAX_NAMED])
    return shown + (", ..." if len(names) > MAX_NAMED else "")
