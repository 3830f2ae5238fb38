"""Models that recall exactly and were never trained: every weight is put where it is by hand.

`python -m qwisp.engine.weights.recall` writes them to `data/models/recall_*`. In `state` the answer
lives only in the recurrent state, in `kv` only in full-attention rows, in `ring` only in
sliding-window rings. One row off, one lane mixed up, one stale state, and the reply is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.text.recall_text import KINDS, NUM_FACTS, RING_WINDOW, VOCAB, Kind
from qwisp.engine.weights.weight_shapes import weight_shapes
from qwisp.spec.data_files import data_path

HIDDEN, CODE = 256, 64
# The residual stream: what a token is, what stood before it, what comes next, and a constant.
TOKEN, BEFORE, NEXT = (np.arange(CODE) + n * CODE for n in range(3))
CONST = 3 * CODE
GROUP_SIZE = 128
Named = dict[str, np.ndarray]


def build(kind: Kind) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """Return config and weights of a recall model, in the mlx-community layout.

    Embedding and output map hold -1, 0 and 1 and are packed in two bits, which is exact.
    """
    config = _config(kind)
    spec = read_decoder(config)
    offset = spec.norm_offset
    w = {
        name: np.full(shape, 1.0 - offset if "norm" in name else 0.0, np.float32)
        for name, shape in weight_shapes(spec)
    }
    {"state": _state, "kv": _kv, "ring": _ring}[kind](w, spec)
    made: dict[str, mx.array] = {}
    for name, values in w.items():
        if "embed_tokens" in name or "lm_head" in name:
            made |= _packed(name.removesuffix(".weight"), values)
        else:
            made[name] = _as_small_as_exact(values, keep=name.endswith("norm.weight"))
    return config, made


def write_recall(folder: Path, kind: Kind) -> Path:
    """Write config, weights and a tokenizer of one word a token; return the folder."""
    config, weights = build(kind)
    target = folder / f"recall_{kind}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    mx.save_safetensors(str(target / "model.safetensors"), weights)
    (target / "tokenizer.json").write_text(json.dumps(_tokenizer()) + "\n")
    chat = {"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}
    (target / "tokenizer_config.json").write_text(json.dumps(chat) + "\n")
    return target


def codes() -> np.ndarray:
    """Return a code of 64 signs for every token, half of them plus; no two are alike.

    Two of the 6,144 agree in at most 54 of 64 signs, so a match outweighs every other token.
    """
    rng = np.random.default_rng(20)
    half = np.repeat([1.0, -1.0], CODE // 2)
    return np.stack([rng.permutation(half) for _ in range(VOCAB)]).astype(np.float32)


def words() -> list[str]:
    """Return the text of every token: keys k0 to k63, values v0 to v63, then plain words."""
    facts = [f"{letter}{i}" for letter in "kv" for i in range(NUM_FACTS)]
    return facts + [f"w{i}" for i in range(VOCAB - len(facts))]


def _state(w: Named, spec: DecoderSpec) -> None:
    """A key is written with the value after it; key or value then read what the key was given.

    Keys and values are one-hot, words are orthogonal to both and leave the state alone.
    """
    root = spec.prefix
    own, loud = np.arange(NUM_FACTS), 20 / HIDDEN**0.5
    embed, head = w[f"{root}model.embed_tokens.weight"], w[f"{root}lm_head.weight"]
    embed[own, own] = embed[NUM_FACTS + own, NUM_FACTS + own] = 1
    embed[2 * NUM_FACTS :, CONST:] = codes()[2 * NUM_FACTS :]
    answer = 2 * NUM_FACTS + own
    head[NUM_FACTS + own, answer] = 1
    base = f"{root}model.layers.0.linear_attn"
    qkv, taps = w[f"{base}.in_proj_qkv.weight"], w[f"{base}.conv1d.weight"]
    query, key, value = (n * NUM_FACTS + own for n in range(3))
    qkv[query, own] = qkv[query, NUM_FACTS + own] = loud
    qkv[key, own] = loud
    qkv[value, NUM_FACTS + own] = loud
    taps[query, 3] = taps[key, 2] = taps[value, 3] = 1  # the key is that of the token before
    w[f"{base}.in_proj_z.weight"][:, : 2 * NUM_FACTS] = 2 / HIDDEN**0.5
    w[f"{base}.in_proj_b.weight"][0, : 2 * NUM_FACTS] = 30 / HIDDEN**0.5
    w[f"{base}.A_log"][:] = -40  # nothing decays
    w[f"{base}.out_proj.weight"][answer, own] = 1


def _kv(w: Named, spec: DecoderSpec) -> None:
    """Gated delta copies the token before; attention finds where that is the token at hand."""
    root, unit = spec.prefix, 1 / _normed(65)
    _code_in_and_out(w, root)
    base, keys = f"{root}model.layers.0.linear_attn", 32
    qkv, taps = w[f"{base}.in_proj_qkv.weight"], w[f"{base}.conv1d.weight"]
    value = 2 * keys + np.arange(CODE)
    qkv[0, CONST] = qkv[keys, CONST] = 20 * unit  # one key for all: each token overwrites the last
    qkv[value, TOKEN] = qkv[value, CONST] = 10 * unit  # silu has no minus: signs become 0 and 1
    taps[: 2 * keys, 3] = taps[2 * keys :, 2] = 1
    w[f"{base}.in_proj_z.weight"][:, CONST] = 2 * unit
    w[f"{base}.in_proj_b.weight"][0, CONST] = 30 * unit
    w[f"{base}.A_log"][:] = -40
    silu_of_2 = 2 / (1 + np.exp(-2))
    w[f"{base}.out_proj.weight"][BEFORE, np.arange(CODE)] = 1 / (2**0.5 * silu_of_2)
    base, dim, still = f"{root}model.layers.1.self_attn", 128, 32 + np.arange(CODE)
    w[f"{base}.q_proj.weight"][still, TOKEN] = 1
    w[f"{base}.q_proj.weight"][dim:, CONST] = 10  # the gate is open
    w[f"{base}.k_proj.weight"][still, BEFORE] = 2
    w[f"{base}.k_proj.weight"][still, CONST] = -1
    w[f"{base}.v_proj.weight"][np.arange(CODE), TOKEN] = 1
    w[f"{base}.q_norm.weight"][:] = 16
    w[f"{base}.o_proj.weight"][NEXT, np.arange(CODE)] = 4


def _ring(w: Named, spec: DecoderSpec) -> None:
    """The first window finds the token before by its position, the second by its content.

    The first pairs of a head turn fast and tell positions apart; the others hardly turn at all.
    """
    root, pairs = spec.prefix, 80
    _code_in_and_out(w, root)
    fast = np.arange(12)
    speed = 1e30 ** (-fast / pairs)
    base = f"{root}model.layers.0.self_attn"
    # A query turned back by one step meets, at full length, the key of the position before.
    w[f"{base}.q_proj.weight"][fast, CONST] = np.cos(speed)
    w[f"{base}.q_proj.weight"][pairs + fast, CONST] = -np.sin(speed)
    w[f"{base}.k_proj.weight"][fast, CONST] = 1
    w[f"{base}.v_proj.weight"][np.arange(CODE), TOKEN] = 1
    w[f"{base}.o_proj.weight"][BEFORE, np.arange(CODE)] = 1
    w[f"{base}.q_norm.weight"][:] = w[f"{base}.k_norm.weight"][:] = 7
    # Half of the hidden size is silent: normed signs have size 2, embeddings 16.
    w[f"{root}model.layers.0.post_attention_layernorm.weight"][:] = 7
    base, still = f"{root}model.layers.1.self_attn", 16 + np.arange(CODE)
    w[f"{base}.q_proj.weight"][still, TOKEN] = 1
    w[f"{base}.k_proj.weight"][still, BEFORE] = 1
    w[f"{base}.v_proj.weight"][np.arange(CODE), TOKEN] = 1
    w[f"{base}.o_proj.weight"][NEXT, np.arange(CODE)] = 1
    w[f"{base}.q_norm.weight"][:] = 15
    w[f"{root}model.layers.1.post_attention_layernorm.weight"][:] = 31


def _code_in_and_out(w: Named, root: str) -> None:
    signs = codes()
    w[f"{root}model.embed_tokens.weight"][:, TOKEN] = signs
    w[f"{root}model.embed_tokens.weight"][:, CONST] = 1
    w[f"{root}lm_head.weight"][:, NEXT] = signs


def _normed(num_ones: int) -> float:
    """Return what a 1 becomes in a normed row with so many elements of size 1."""
    return (HIDDEN / num_ones) ** 0.5


def _packed(stem: str, values: np.ndarray) -> dict[str, mx.array]:
    """Return a matrix of -1, 0, 1 in two bits: words, scales of 1 and biases of -1."""
    levels = (values + 1).astype(np.uint32)
    assert np.array_equal(levels.astype(np.float32) - 1, values)
    places = levels.reshape(*levels.shape[:-1], -1, 16) << (2 * np.arange(16, dtype=np.uint32))
    groups = (*levels.shape[:-1], levels.shape[-1] // GROUP_SIZE)
    return {
        f"{stem}.weight": mx.array(places.sum(axis=-1).astype(np.uint32)),
        f"{stem}.scales": mx.ones(groups, mx.bfloat16),
        f"{stem}.biases": mx.full(groups, -1.0, mx.bfloat16),
    }


def _as_small_as_exact(values: np.ndarray, *, keep: bool) -> mx.array:
    """Return bf16 where it is exact; norms stay fp32, because they give the model its type."""
    full = mx.array(values)
    half = full.astype(mx.bfloat16)
    exact = bool((half.astype(mx.float32) == full).all().item())
    return half if exact and not keep else full


def _config(kind: Kind) -> dict[str, Any]:
    shared = {
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1 << 17,
        "tie_word_embeddings": False,
        "quantization": {"group_size": GROUP_SIZE, "bits": 2, "mode": "affine"},
    }
    if kind == "ring":
        return shared | {
            "model_type": "gemma3_text",
            "head_dim": 160,
            "sliding_window": RING_WINDOW,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 1e30,
            "query_pre_attn_scalar": 160,
        }
    text = shared | {
        "model_type": "qwen3_5_text",
        "head_dim": 128,
        "full_attention_interval": 2,
        "linear_num_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": NUM_FACTS if kind == "state" else 32,
        "linear_value_head_dim": CODE,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
    }
    return {"model_type": "qwen3_5", "text_config": text, "quantization": text.pop("quantization")}


def _tokenizer() -> Mapping[str, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {word: i for i, word in enumerate(words())}
    made = Tokenizer(models.WordLevel(vocab, unk_token=words()[-1]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return json.loads(made.to_str())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_path("models")
    for kind in KINDS:
        made = write_recall(folder, kind)
        print(made, sum(path.stat().st_size for path in made.iterdir()), "bytes")
