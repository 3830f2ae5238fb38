"""How many bytes a model's weights are: from its own files, or from a published pack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from qwisp.memory.projection import Term
from qwisp.spec.data_files import data_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model's weights; a mixture of experts splits into common part and experts.

    `is_own` is true for the very files that would be served, false for a published pack of the
    same model. Expert fields are 0 for a dense model or when the split is not known.
    """

    file_bytes: int
    common_bytes: int = 0
    expert_stride_bytes: int = 0
    expert_layers: int = 0
    experts_per_layer: int = 0
    is_own: bool = False
    source: str = ""

    @property
    def has_experts(self) -> bool:
        """Whether experts could be streamed through slots."""
        return self.expert_stride_bytes > 0


def load_weights(model: str | Path) -> Weights | None:
    """Return the weights of a catalog name or of a folder with weight files; None if unknown.

    >>> load_weights("qwen3.6-35b-a3b").expert_layers
    40
    """
    published = _published()
    if str(model) in published:
        return Weights(**published[str(model)])
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf" and path.is_file():
        return _own(path.stat().st_size, path)
    if path.suffix != ".json" and not path.is_dir():
        return None
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return _own(sum(sizes), folder) if sizes else None


def weights_term(weights: Weights | int | None, ranks: int = 1) -> Term:
    """Return the share of one of `ranks` devices, rounded up; unmeasured without a size.

    >>> weights_term(10, 3).num_bytes, weights_term(None).provenance
    (4, 'unmeasured')
    """
    share = f", one of {ranks} shares" if ranks > 1 else ""
    if weights is None:
        note = "size of the weights not known: give --weights SIZE"
        return Term(name="weights", num_bytes=None, provenance="unmeasured", note=note)
    if isinstance(weights, int):
        size, is_own, where = weights, True, "as given"
    else:
        size, is_own = weights.file_bytes, weights.is_own
        where = weights.source if is_own else "a published 4-bit pack of this model"
    return Term(
        name="weights",
        num_bytes=-(-size // ranks),
        provenance="exact" if is_own else "borrowed",
        note=where + share,
    )


def _own(file_bytes: int, path: Path) -> Weights:
    return Weights(file_bytes=file_bytes, is_own=True, source=str(path))


def _published() -> dict[str, dict[str, int | str]]:
    text = data_path("calibration", "memory-weights.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, int | str]] = json.loads(text)["models"]
    return models
