"""How far the engine's solo run is from mlx-lm's: rounding, where all is well."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from qwisp.engine.spec.families import read_decoder
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.engine.weights.loading import TINY_PREFIX
from qwisp.engine.weights.random_weights import random_weights
from qwisp.errors import NotInstalled


class Distance(NamedTuple):
    """The largest difference of any logit, the largest logit, and greedy tokens that agree."""

    largest: float
    scale: float
    same_tokens: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"largest difference {self.largest:.3g} of logits up to {self.scale:.3g}, "
            f"{self.same_tokens} of {self.tokens} greedy tokens the same"
        )


def distance_to_mlx_lm(
    model: LoadedModel, prompt: Sequence[int], tokens: Sequence[int], words: np.ndarray, seed: int
) -> Distance:
    """Return the distance of our solo logits, raw `words` `[steps, vocab]`, from mlx-lm's.

    mlx-lm is fed our tokens, so a step is compared whatever the step before chose. Raises
    `NotInstalled` without mlx-lm or where it does not run this model.
    """
    peer = _peer(model, seed)
    cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(peer)
    try:
        if len(prompt) > 1:
            mx.eval(peer(mx.array([prompt[:-1]]), cache=cache))
        rows = []
        for token in [prompt[-1], *tokens[:-1]]:
            logits = peer(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)
            rows.append(np.array(logits))
    except (RuntimeError, ValueError) as error:
        raise NotInstalled(
            f"mlx-lm does not run this model here: {error}", "compare fp32"
        ) from None
    theirs, ours = np.stack(rows), _floats(words, model.dtype)
    return Distance(
        float(np.abs(ours - theirs).max()),
        float(np.abs(theirs).max()),
        int((ours.argmax(-1) == theirs.argmax(-1)).sum()),
        len(tokens),
    )


def _peer(model: LoadedModel, seed: int):
    """Return mlx-lm's model over the same weights."""
    try:
        if not model.name.startswith(f"{TINY_PREFIX}:"):
            if model.folder is None:
                raise NotInstalled(f"{model.name} has no folder mlx-lm could read", "give a folder")
            return importlib.import_module("mlx_lm.utils").load_model(model.folder)[0]
        module = importlib.import_module(f"mlx_lm.models.{model.config['model_type']}")
    except ImportError:
        raise NotInstalled("mlx-lm is not installed", "pip install 'qwisp[lm]'") from None
    except ValueError as error:
        raise NotInstalled(f"mlx-lm does not read this model: {error}", "compare another") from None
    config = {key: value for key, value in model.config.items() if key != "dtype"}
    peer = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    weights = random_weights(read_decoder(model.config), seed, model.dtype)
    peer.load_weights(list(weights.items()))
    peer.eval()
    return peer


def _floats(words: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return words.view(np.float32 if dtype == "float32" else np.float16).astype(np.float32)
