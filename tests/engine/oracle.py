"""mlx-lm as an oracle: a tiny random instance of its own class, saved in its own layout.

The engine is no copy of it: attention is summed by blocks, experts in the router's order, the
convolution tap by tap. So logits agree to a stated bound, and greedy tokens agree exactly.
"""

from __future__ import annotations

import copy
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from qwisp.engine.build import open_engine
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.engine.weights.loading import load_decoder
from qwisp.scheduling.drive import drive
from qwisp.scheduling.settings import Settings

from .runs import sized

CHUNK = 64


def oracle_model(config: dict[str, Any], seed: int = 0):
    """Return mlx-lm's model of a config with random weights in which every one matters."""
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    rng = np.random.default_rng(seed)
    made = [(name, _values(name, w, rng)) for name, w in tree_flatten(model.parameters())]
    model.update(tree_unflatten(made))
    model.eval()
    mx.eval(model.parameters())
    return model


def _values(name: str, w: mx.array, rng: np.random.Generator) -> mx.array:
    if name.endswith("A_log"):
        values = np.log(rng.uniform(0.05, 8, w.shape))
    elif name.endswith(("dt_bias", ".bias")):
        values = rng.normal(0, 0.3, w.shape)
    elif w.ndim < 2:  # norms, scales and factors stand around what they were made with
        values = np.array(w) + rng.normal(0, 0.15, w.shape)
    elif "conv1d" in name:
        values = rng.normal(0, 0.6, w.shape)
    elif "embed_tokens" in name:
        values = rng.normal(0, 1, w.shape) * w.shape[-1] ** -0.5
    else:
        values = rng.normal(0, 1.5, w.shape) * w.shape[-1] ** -0.5
    return mx.array(values.astype(np.float32))


def quantise(model, config: dict[str, Any], bits: int = 4, group_size: int = 32):
    """Return model and config as mlx-lm quantises them, routers in 8 bits by its own rule."""
    from mlx_lm.utils import quantize_model

    return quantize_model(model, config, group_size=group_size, bits=bits)


def save(folder: Path, model, config: dict[str, Any], shards: int = 1) -> Path:
    """Write config and weights as mlx-lm does; `shards` files with an index if more than one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = tree_flatten(model.parameters())
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
        return folder
    where = {}
    for n in range(shards):
        name = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(weights[n::shards])
        mx.save_safetensors(str(folder / name), part)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@dataclass(frozen=True, slots=True)
class Steps:
    """Greedy tokens and the logits that each was chosen from, `[steps, vocab]` in fp32."""

    tokens: list[int]
    logits: np.ndarray


def oracle_steps(model, prompt: tuple[int, ...], steps: int) -> Steps:
    """Return mlx-lm's greedy continuation of a prompt, alone."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    logits = model(mx.array(prompt)[None], cache=cache)[0, -1]
    tokens, kept = [], []
    for _ in range(steps):
        kept.append(np.array(logits.astype(mx.float32)))
        tokens.append(int(mx.argmax(logits).item()))
        logits = model(mx.array([[tokens[-1]]]), cache=cache)[0, -1]
    return Steps(tokens, np.stack(kept))


def engine_steps(model: LoadedModel, prompt: tuple[int, ...], steps: int) -> Steps:
    """Return this engine's greedy continuation of a prompt, alone."""
    script = ScriptedClients.of({0: TokenRequest(prompt=prompt)}, max_new={0: steps})
    settings = Settings(chunk_tokens=CHUNK, budget_tokens=0)
    layout = sized([len(prompt) + steps + 8])
    engine = open_engine(model, layout, script, settings, keeps_logits=True)
    drive(engine.scheduler, engine.executor)
    words = np.stack(script.replies[0].logits)
    assert words.dtype == np.uint32
    return Steps(script.replies[0].tokens, words.view(np.float32))


def compare(
    folder: Path,
    config: dict[str, Any],
    *,
    steps: int,
    prompt_tokens: int = 100,
    bits: int | None = None,
    seed: int = 0,
) -> tuple[Steps, Steps]:
    """Return mlx-lm's and the engine's steps on one saved random instance."""
    model = oracle_model(config, seed)
    if bits is not None:
        model, config = quantise(model, config, bits)
    save(folder, model, config)
    rng = np.random.default_rng(seed + 1)
    vocab = config.get("text_config", config)["vocab_size"]
    prompt = tuple(rng.integers(0, vocab, prompt_tokens).tolist())
    return oracle_steps(model, prompt, steps), engine_steps(load_decoder(folder), prompt, steps)
