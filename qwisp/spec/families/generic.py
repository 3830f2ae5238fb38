"""The fallback: grouped attention in every block, for configs that speak of nothing else."""

from __future__ import annotations

import re

from qwisp.spec.families.common import Blocks, num_layers, read_heads
from qwisp.spec.fields import Fields

_NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size")
_FOREIGN = re.compile(
    r"window|layer_types|block_type|pattern|mamba|ssm|state|conv|linear_|lora_rank|latent|attn_layer"
    r"|attention_layer|recurren|rwkv|retention|delta|hybrid|chunk|compress|shared_kv|kv_shared"
    r"|index_topk|index_head|indexer",
    re.ASCII,
)


def foreign_key(f: Fields) -> str | None:
    """Return why this config is not plainly grouped attention, or None if it is.

    >>> foreign_key(Fields({"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8}))
    >>> foreign_key(Fields({"num_hidden_layers": 1, "ssm_state_size": 16}))
    'ssm_state_size speaks of other layer kinds'
    """
    for key, value in f.values.items():
        if value not in (None, False) and _FOREIGN.search(str(key)):
            return f"{str(key)[:60]} speaks of other layer kinds"
    missing = [key for key in _NEEDED if not f.has(key)]
    return f"{missing[0]} is missing" if missing else None


def read(f: Fields) -> Blocks:
    """Return full attention for every block, and a note that it is a guess."""
    family = f.text("model_type")[:60]
    f.notes.append(f"{family} is not a known family: read as grouped attention in every layer")
    return Blocks(layers=[read_heads(f).full()] * num_layers(f), generic=True)
