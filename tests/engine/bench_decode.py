"""Decode rate of the strict engine against mlx-lm's batch generator: one model, machine, run.

    python tests/engine/bench_decode.py [--steps 64] [--batches 1,2,4,8] [--model moe|dense]

Both sides start from the same ragged contexts with made-up rows (prefill is not what is measured),
take turns, and report the median step. The price of strictness is the same engine without its
safeguards.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import statistics
import time

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.arena import Arena, ArenaPlan
from qwisp.engine.cache.blobs import Blob
from qwisp.engine.cache.buffers import KvCopy, StateCopy
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model.decoder import Decoder
from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.identity import Identity, Safeguards
from qwisp.engine.weights.random_weights import random_weights
from qwisp.scheduling.contract import Admit, Place, Restore, Round
from qwisp.spec.layers import GatedDelta

MOE = {
    "model_type": "qwen3_5_text",
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 8192,
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
DENSE = {**MOE, "num_experts": 0, "intermediate_size": 1792}
CONFIGS = {
    "moe": {"model_type": "qwen3_5_moe", "text_config": MOE},
    "dense": {"model_type": "qwen3_5", "text_config": DENSE},
}


def contexts_of(batch: int) -> list[int]:
    """Return ragged contexts from 64 to 2,000 tokens."""
    return [2000] if batch == 1 else [int(n) for n in np.linspace(64, 2000, batch)]


def made_up(spec: DecoderSpec, tokens: int, rng: np.random.Generator) -> list[tuple]:
    """Return per layer what a stream of `tokens` might have left behind."""
    parts = []
    for block in spec.blocks:
        layer = block.layer
        if isinstance(layer, GatedDelta):
            state = rng.normal(0, 0.1, (1, layer.value_heads, layer.value_dim, layer.key_dim))
            conv = rng.normal(0, 1, (1, layer.conv_kernel - 1, layer.conv_dim))
            parts.append(StateCopy(*(mx.array(x.astype(np.float32)) for x in (state, conv))))
        else:
            shape = (layer.kv_heads, tokens, layer.k_dim)
            rows = (rng.normal(0, 1, shape).astype(np.float32) for _ in range(2))
            parts.append(KvCopy(*(mx.array(x) for x in rows)))
    return parts


class Strict:
    """Our engine, one decode step a call."""

    def __init__(
        self,
        decoder: Decoder,
        contexts: list[int],
        guards: Safeguards,
        ahead: int = 0,
        is_compiled: bool = False,
    ) -> None:
        rng = np.random.default_rng(1)
        rows = [n + 600 for n in contexts]
        arena = Arena(decoder.spec, ArenaPlan.of_sessions(rows, 256), "float32")
        requests = {i: TokenRequest(prompt=(7,) * (n + 1)) for i, n in enumerate(contexts)}
        identity = Identity(safeguards=guards, is_compiled=is_compiled)
        self.ids = tuple(requests)
        self.executor = MlxExecutor(
            decoder, arena, identity, ScriptedClients(requests, []), ahead=ahead
        )
        ops = []
        for i, n in enumerate(contexts):
            self.executor.blobs.keep(i, Blob(n, tuple(made_up(decoder.spec, n, rng))))
            place = Place(i, sum(rows[:i]), rows[i], rows[i])
            ops += [Admit(i, place, n + 1), Restore(i, i, n)]
        outcome = self.executor.run(Round(0, tuple(ops), (), 1, False))
        assert not outcome.failed, outcome

    def steps(self, count: int) -> float:
        begin = time.perf_counter()
        self.executor.run(Round(1, (), self.ids, count, False))
        return (time.perf_counter() - begin) / count


class Peer:
    """mlx-lm's batch generator over the same weights."""

    def __init__(self, config: dict, weights: dict, spec: DecoderSpec, contexts: list[int]) -> None:
        from mlx_lm.generate import BatchGenerator
        from mlx_lm.models.cache import make_prompt_cache

        module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
        model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
        model.load_weights(list(weights.items()))
        model.eval()
        rng = np.random.default_rng(1)
        caches = []
        for n in contexts:
            cache = make_prompt_cache(model)
            for c, part in zip(cache, made_up(spec, n, rng), strict=True):
                if isinstance(part, StateCopy):
                    c[0], c[1] = part.conv, part.state
                else:
                    c.keys, c.values, c.offset = part.k[None], part.v[None], n
            caches.append(cache)
        self.generator = BatchGenerator(
            model, max_tokens=10_000, completion_batch_size=8, prefill_batch_size=8
        )
        self.generator.insert([[7]] * len(contexts), caches=caches)

    def steps(self, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            self.generator.next_generated()
        return (time.perf_counter() - begin) / count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--model", default="moe", choices=list(CONFIGS))
    asked = parser.parse_args()
    config = CONFIGS[asked.model]
    spec = read_decoder(config)
    weights = random_weights(spec, 0)
    decoder = Decoder(spec, weights, "float32")
    count = sum(w.size for w in weights.values())
    print(f"{asked.model}, {count / 1e6:.1f}M parameters, float32, ragged contexts 64..2,000")
    print("| B | mlx-lm tok/s | strict | compiled, ahead | non-strict | strict / mlx-lm | price |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for batch in map(int, asked.batches.split(",")):
        contexts = contexts_of(batch)
        sides = {
            "peer": Peer(config, weights, spec, contexts),
            "strict": Strict(decoder, contexts, Safeguards()),
            "ahead": Strict(decoder, contexts, Safeguards(), ahead=1, is_compiled=True),
            "stock": Strict(decoder, contexts, Safeguards.none()),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for side in sides.values():
            side.steps(4)
        turn = 8
        for _ in range(max(5, asked.steps // turn)):
            for name, side in sides.items():
                times[name].append(side.steps(turn))
        rate = {name: batch / statistics.median(ts) for name, ts in times.items()}
        print(
            f"| {batch} | {rate['peer']:.1f} | {rate['strict']:.1f} | {rate['ahead']:.1f} |"
            f" {rate['stock']:.1f} | {max(rate['strict'], rate['ahead']) / rate['peer']:.2f} |"
            f" {rate['stock'] / rate['strict']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
