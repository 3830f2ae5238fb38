"""Models built to recall one token exactly, at 1,024 and 4,096 tokens, moved, paused, restored.

Nothing is trained: in one the answer lies only in the recurrent state, in the other only in
full-attention rows. They see faults of lane, state and position that random weights would blur.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.clients import Request, Script
from qwisp.engine.decoder import Decoder
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.hostile import HostileOps
from qwisp.engine.random_weights import weight_shapes
from qwisp.scheduling.contract import Move

from .hand import Hand
from .runs import register_decoder

pytestmark = pytest.mark.mlx

VOCAB = 64
FILLER = 62


def config(hidden: int, heads: int, kv_heads: int, head_dim: int, key_dim: int) -> dict:
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "linear_num_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": VOCAB,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1 << 20,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }
    return {"model_type": "qwen3_5", "text_config": text}


def blank(spec: DecoderSpec) -> dict[str, np.ndarray]:
    """Return weights that do nothing: norms of 1, everything else 0."""
    return {
        name: np.full(shape, 1.0 if "norm" in name else 0.0, np.float32)
        for name, shape in weight_shapes(spec)
    }


def state_model() -> Decoder:
    """Recall from the recurrent state: keys are the token before, values the token."""
    hidden = 2 * VOCAB
    spec = DecoderSpec.from_config(config(hidden, 2, 2, 32, VOCAB))
    w, own = blank(spec), np.arange(VOCAB)
    base = "language_model.model.layers.0.linear_attn"
    w["language_model.model.embed_tokens.weight"][own, own] = 1
    w["language_model.lm_head.weight"][own, VOCAB + own] = 1
    loud = 20 / np.sqrt(hidden)  # a normed one-hot has size sqrt(hidden); silu(20) is about 20
    for part in range(3):
        w[f"{base}.in_proj_qkv.weight"][part * VOCAB + own, own] = loud
    taps = w[f"{base}.conv1d.weight"]
    taps[:VOCAB, 3] = taps[VOCAB : 2 * VOCAB, 2] = taps[2 * VOCAB :, 3] = 1
    w[f"{base}.in_proj_z.weight"][:, :VOCAB] = 2 / np.sqrt(hidden)
    w[f"{base}.in_proj_b.weight"][0, :VOCAB] = 30 / np.sqrt(hidden)
    w[f"{base}.A_log"][:] = -40.0
    w[f"{base}.out_proj.weight"][VOCAB + own, own] = 1
    return Decoder(spec, {name: mx.array(x) for name, x in w.items()}, "float32")


def rows_model() -> Decoder:
    """Recall from full attention: the first layer only supplies the token before."""
    hidden, dim, key = 3 * VOCAB, 256, 32
    spec = DecoderSpec.from_config(config(hidden, 2, 1, dim, key))
    w, own = blank(spec), np.arange(VOCAB)
    loud = 20 / np.sqrt(hidden)
    w["language_model.model.embed_tokens.weight"][own, own] = 1
    w["language_model.lm_head.weight"][own, 2 * VOCAB + own] = 1
    base = "language_model.model.layers.0.linear_attn"
    qkv = w[f"{base}.in_proj_qkv.weight"]
    qkv[0, :VOCAB] = qkv[key, :VOCAB] = loud
    qkv[2 * key + own, own] = loud
    taps = w[f"{base}.conv1d.weight"]
    taps[: 2 * key, 3] = taps[2 * key :, 2] = 1
    w[f"{base}.in_proj_z.weight"][:, :VOCAB] = 2 / np.sqrt(hidden)
    w[f"{base}.in_proj_b.weight"][0, :VOCAB] = 30 / np.sqrt(hidden)
    w[f"{base}.A_log"][:] = -40.0
    w[f"{base}.out_proj.weight"][VOCAB + own, own] = 1
    base = "language_model.model.layers.3.self_attn"
    query = np.zeros((2, 2, dim, hidden), np.float32)
    query[:, 0, VOCAB + own, own] = 1
    query[:, 1, :, :VOCAB] = 10 / np.sqrt(hidden)
    w[f"{base}.q_proj.weight"] = query.reshape(-1, hidden)
    w[f"{base}.k_proj.weight"][VOCAB + own, VOCAB + own] = 1
    w[f"{base}.v_proj.weight"][own, own] = 1
    w[f"{base}.q_norm.weight"][:] = 4.0
    w[f"{base}.o_proj.weight"][2 * VOCAB + own, own] = 1
    return Decoder(spec, {name: mx.array(x) for name, x in w.items()}, "float32")


def question(rng: np.random.Generator, length: int) -> tuple[list[int], int]:
    """Return a text of key-value pairs that ends with a key, and the value to recall."""
    text = [FILLER] * length
    keys = rng.permutation(31)
    places = sorted(rng.choice(np.arange(0, length - 4, 2), size=31, replace=False))
    answers = {}
    for key, place in zip(keys, places, strict=True):
        text[place], text[place + 1] = int(key), int(rng.integers(31, 62))
        answers[int(key)] = text[place + 1]
    asked = int(rng.integers(31))
    text[-1] = asked
    return text, answers[asked]


@pytest.mark.parametrize("length", [1024, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [state_model, rows_model])
def test_the_answer_survives_moves_pauses_and_restores(build, length):
    rng = np.random.default_rng(3)
    register_decoder(build.__name__, build())
    text, answer = question(rng, length)
    saved = length * 4 // 5 + 1
    short, other = question(rng, 200)
    requests = {i: Request(prompt=tuple(text)) for i in (0, 1)} | {2: Request(prompt=tuple(short))}
    rows = [length + 64, length + 40, 260]
    hand = Hand(build.__name__, rows, requests, ops=HostileOps(), poisons=True, chunk=256)
    assert hand.start(2, 2).failed == ()
    assert hand.start(0, 0, cuts=[length // 4 - 3], capture=(9, saved)).failed == ()
    assert hand.start(1, 1, restore=(9, saved)).failed == ()
    hand.end(1, 1)
    hand.round(Move(0, hand.places[0], hand.places[1], length - 1), decode=[2])
    hand.round(decode=[0])
    assert hand.script.replies[0].tokens == [answer]
    assert hand.script.replies[2].tokens == [other]
    again = hand.start(1, 0, restore=(9, saved))
    assert again.failed == ()
    hand.round(decode=[1, 2])
    assert hand.script.replies[1].tokens == [answer]


def test_the_models_notice_what_they_are_for():
    """A state of zeros, or keys that lie one row off, and the answer is gone."""
    rng = np.random.default_rng(4)
    lost = 0
    for build in (state_model, rows_model):
        register_decoder(build.__name__, build())
        text, answer = question(rng, 300)
        hand = Hand(build.__name__, [400], {0: Request(prompt=tuple(text))})
        hand.start(0, 0)
        for buffer in hand.arena.buffers:
            if build is state_model and buffer.layer_class == "state":
                buffer.state = mx.zeros_like(buffer.state)
            if build is rows_model and buffer.layer_class == "full":
                buffer.k = mx.roll(buffer.k, 1, axis=1)
        hand.round(decode=[0])
        lost += hand.script.replies[0].tokens != [answer]
    assert lost == 2
    assert isinstance(hand.script, Script)
