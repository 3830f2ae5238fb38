"""Plain grouped attention in every block."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, num_layers, read_heads
from qwisp.spec.fields import Fields


def read(f: Fields) -> Blocks:
    """Return full attention for every block."""
    generic = f.text("model_type") == "generic"
    if generic:
        f.notes.append("read as plain grouped attention in every layer, which may be wrong")
    heads = read_heads(f)
    return Blocks(layers=[heads.full()] * num_layers(f), generic=generic)
