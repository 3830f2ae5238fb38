"""Dialects by engine name, made from checked options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from qwisp.errors import BadInput
from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm

DIALECTS: dict[str, type[Dialect]] = {
    kind.name: kind for kind in (Qwisp, Fieldfare, LlamaCpp, MlxLm, Vllm, Sglang)
}
MAX_OPTION = 2**31


def dialect(engine: str, options: Mapping[str, Any] | None = None) -> Dialect:
    """Return the dialect of `engine` with its fields set from `options`.

    Raises `BadInput` for an unknown engine, an option the engine does not have, or a value of the
    wrong type or below what makes sense.

    >>> dialect("llama.cpp", {"n_seq": 4, "unified": True}).streams
    1
    """
    kind = DIALECTS.get(engine)
    if kind is None:
        near = get_close_matches(str(engine)[:40], DIALECTS, n=1, cutoff=0.3)
        raise BadInput(
            f"engine {str(engine)[:40]!r} is not known",
            f"use {near[0] if near else ', '.join(DIALECTS)}",
        )
    types = {field.name: str(field.type) for field in fields(kind)}
    for option, value in (options or {}).items():
        if option not in types:
            raise BadInput(f"{engine} has no option {option!r}", f"it has {', '.join(types)}")
        _check(engine, option, value, types[option])
    return kind(**(options or {}))


def _check(engine: str, option: str, value: object, type_text: str) -> None:
    """Options are flags, whole numbers or names; a flag is no number."""
    if value is None and "None" in type_text:
        return
    kind = type_text.split(" ")[0]
    good = {
        "bool": lambda: isinstance(value, bool),
        "str": lambda: isinstance(value, str),
        "int": lambda: (
            isinstance(value, int)
            and not isinstance(value, bool)
            and (1 <= value <= MAX_OPTION or (value == 0 and option == "draft_copies"))
        ),
    }[kind]()
    if not good:
        raise BadInput(
            f"option {option} of {engine} is {str(value)[:40]!r}", f"give a {kind} that makes sense"
        )
