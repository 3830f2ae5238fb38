"""The toy that the study serves, and how; `fan_out.py` is told all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from qwisp.engine.spec.tiny import tiny_config
from qwisp.errors import QwispError

CHUNK_TOKENS = 256
NEW_TOKENS = 16
OWN_TOKENS = 40
SHARED_TOKENS = 384  # one window and a half
# One gated delta block and six of full attention; a head's row has the 512 bytes of Qwen 3.6.
CONFIG: dict[str, Any] = {
    **tiny_config("hybrid")["text_config"],
    "num_hidden_layers": 7,
    "full_attention_interval": None,
    "layer_types": ["linear_attention", *["full_attention"] * 6],
    "head_dim": 256,
    "max_position_embeddings": 16_384,
    "dtype": "bfloat16",
}


class RunEnded(QwispError):
    """The process that served the toy ended early."""


def serving(**changed: Any) -> dict[str, Any]:
    """Return how the toy is served; these are inputs of receipts."""
    return {"new_tokens": NEW_TOKENS, "chunk_tokens": CHUNK_TOKENS, **changed}


def in_a_process(**arguments: Any) -> dict[str, Any]:
    """Return what `fan_out.py` prints for these arguments and the toy's config."""
    script = Path(__file__).with_name("fan_out.py")
    command = [sys.executable, str(script), json.dumps({"config": CONFIG, **arguments})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise RunEnded(f"the toy's process ended with {done.returncode}: {last}", "run it again")
    return json.loads(done.stdout)
