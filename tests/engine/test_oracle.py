"""The decoder agrees with mlx-lm's model class on the same weights.

Not bit for bit: attention here is a sum over blocks of 256 keys, experts are added in the order of
their scores, and products read `[K, N]` weights. What remains is rounding: bounds are in units of
the logits' size.
"""

from __future__ import annotations

import copy
import importlib

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.clients import Request
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.random_weights import random_weights
from qwisp.engine.tiny import TINY, tiny_config

from .hand import Hand

pytestmark = pytest.mark.mlx

STEPS = 200
LENGTH = 130


def peer(name: str, dtype: str = "float32"):
    config = copy.deepcopy(tiny_config(name))
    module = pytest.importorskip(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = random_weights(DecoderSpec.from_config(tiny_config(name)), 0, dtype)
    model.load_weights(list(weights.items()))
    model.eval()
    return model


def peer_logits(model, prompt: list[int], reply: list[int]) -> np.ndarray:
    cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model)
    mx.eval(model(mx.array([prompt[:-1]]), cache=cache))
    rows = []
    for token in [prompt[-1], *reply[:-1]]:
        logits = model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)
        rows.append(np.array(logits))
    return np.stack(rows)


def our_logits(name: str, dtype: str, prompt: list[int], steps: int) -> tuple[np.ndarray, list]:
    hand = Hand(name, [512], {0: Request(prompt=tuple(prompt))}, dtype=dtype)
    hand.start(0, 0)
    hand.round(decode=[0], steps=steps)
    words = hand.logits(0)
    kind = np.float32 if dtype == "float32" else None
    floats = words.view(kind) if kind else (words.astype(np.uint32) << 16).view(np.float32)
    return floats, hand.script.replies[0].tokens


def prompt_of(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()


@pytest.mark.parametrize("name", list(TINY))
def test_200_greedy_tokens_and_their_logits_are_mlx_lms(name):
    model, prompt = peer(name), prompt_of(11)
    ours, tokens = our_logits(name, "float32", prompt, STEPS)
    theirs = peer_logits(model, prompt, tokens)
    assert np.abs(ours - theirs).max() <= 4e-5 * np.abs(theirs).max()
    assert tokens == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("name", ["hybrid", "llama", "gemma3"])
def test_bf16_logits_are_mlx_lms_within_rounding(name):
    """bf16 keeps 8 bits: a dozen roundings of 2^-8 through the layers, taken in another order."""
    model, prompt = peer(name, "bfloat16"), prompt_of(12)
    ours, tokens = our_logits(name, "bfloat16", prompt, 20)
    theirs = peer_logits(model, prompt, tokens)
    assert np.abs(ours - theirs).max() <= 12 * 2**-8 * np.abs(theirs).max()
