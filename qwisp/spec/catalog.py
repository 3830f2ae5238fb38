"""Models and machines by name, from `data/models/*.json` and `data/machines/*.json`.

A model file holds `{"source", "config"}` or `{"source", "geometry"}`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from qwisp.errors import BadConfig, BadInput
from qwisp.spec.data_files import data_path
from qwisp.spec.detect import detect_machine
from qwisp.spec.fields import Fields
from qwisp.spec.geometry import layers_from_geometry
from qwisp.spec.gguf_model import spec_from_gguf
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec, load_json


def model_names() -> list[str]:
    """Return the names in the catalog, sorted.

    >>> "qwen3.6-35b-a3b" in model_names()
    True
    """
    return sorted(path.stem for path in data_path("models").glob("*.json"))


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Return the model of a catalog name, a `config.json` or its folder, or a GGUF file's header.

    Raises `BadInput` for a name that is not in the catalog, listing close ones.

    >>> load_model("gemma-4-26b-a4b").context_max_tokens
    262144
    """
    text = str(name_or_path)
    if not text.strip() or "\0" in text:
        raise BadInput(f"model {text!r} is not a name", _known(""))
    if text in model_names():
        return _from_catalog(text)
    path = Path(text)
    if path.suffix == ".gguf":
        return spec_from_gguf(path)
    if path.suffix == ".json" or os.path.exists(path) or len(path.parts) > 2:
        return ModelSpec.from_config(path)
    raise BadInput(f"model {text!r} is neither in the catalog nor a path", _known(text))


def _known(text: str) -> str:
    names = model_names()
    near = get_close_matches(text.lower().rsplit("/", 1)[-1], names, n=3, cutoff=0.4)
    return f"use {', '.join(near or names)}, or give a config.json or a GGUF file"


def _from_catalog(name: str) -> ModelSpec:
    values, path = load_json(data_path("models", f"{name}.json"), "config.json")
    if not isinstance(values, dict):
        raise BadConfig(f"{path} is not an object", "write source and config", key="config")
    f = Fields(values)
    notes = tuple(str(note) for note in values.get("notes", []))
    if f.has("config"):
        spec = ModelSpec.from_config(values["config"], name=name)
        return replace(spec, source=f.text("source"), notes=spec.notes + notes)
    return ModelSpec(
        name=name,
        family=f.text("family"),
        layers=layers_from_geometry(values.get("geometry")),
        context_max_tokens=f.size("context_max_tokens", None),
        element_bytes=f.size("element_bytes", 2),
        source=f.text("source"),
        notes=notes,
    )


def machine_names() -> list[str]:
    """Return the names of the catalog, `this` last."""
    return [*sorted(path.stem for path in data_path("machines").glob("*.json")), "this"]


def load_machine(name: str) -> MachineSpec:
    """Return a machine of the catalog, or `this` one as detected now.

    Raises `BadInput` for a name that is neither.

    >>> load_machine("m1-max-64gb").memory_bytes >> 30
    64
    """
    if name == "this":
        return detect_machine()
    if name not in machine_names():
        raise BadInput(f"machine {name!r} is not known", f"use one of {', '.join(machine_names())}")
    fields = json.loads(data_path("machines", f"{name}.json").read_text(encoding="utf-8"))
    fields.pop("schema")
    return MachineSpec(name=name, **fields)
