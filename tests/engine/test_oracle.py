"""Every family computes what mlx-lm's own class computes: equal greedy tokens, logits to a bound.

The bound is one of fp32 arithmetic: the two sum the same few hundred products per row in another
order, through up to five layers, on logits of size 4 to 13. Measured: at most 5e-5.
"""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.cache.buffers import KeyRange
from qwisp.engine.model.attention import Partial, combine, decode_lane, prefill_window
from qwisp.engine.model.ffn import Mixture, sum_in_order, top_k
from qwisp.engine.model.gated_delta import walk
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.step import Context, Lane, Step, Window
from qwisp.engine.spec.decoder_spec import MoeFfn
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.spec.tiny import MORE_TINY, TINY
from qwisp.engine.weights.loading import load_decoder
from qwisp.scheduling.contract import Place

from .oracle import CHUNK, compare, engine_steps, oracle_model, oracle_steps, save

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'qwisp[lm]'")
pytestmark = [
    pytest.mark.mlx,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by what mlx-lm imports
]

BOUND = 2e-4
STEPS = 200
FAMILIES = {
    name: {key: value for key, value in config.items() if value is not None}
    for name, config in {**TINY, **MORE_TINY}.items()
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_QWEN_ROPE = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
_FULL_ROPE = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
_WINDOW_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 16,
    "long_factor": [1.0 + 0.25 * i for i in range(16)],
}

# Name: family, what its config says, and whether the family's plain config loads the same weights,
# so that one can see that the key changes the arithmetic.
VARIANTS = {
    "linear rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, True),
    "llama3 rope": ("llama", {"rope_scaling": _LLAMA3}, True),
    "llama3 rope, named high and low": (
        "llama",
        {"rope_scaling": _LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 8.0}},
        True,
    ),
    "yarn": ("qwen3", {"rope_scaling": _YARN}, True),
    "yarn, all keys": (
        "llama",
        {"rope_scaling": _YARN | {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7}},
        True,
    ),
    "longrope": ("llama", {"rope_scaling": _LONG}, True),
    "traditional rope": ("llama", {"rope_traditional": True}, True),
    "rope base": ("llama", {"rope_theta": 500.0}, True),
    "rope parameters": (
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_theta": 99.0}},
        True,
    ),
    "partial rope": ("qwen3_next", {"partial_rotary_factor": 0.5}, True),
    "partial rope, nested": (
        "hybrid",
        {"rope_parameters": _QWEN_ROPE | {"partial_rotary_factor": 0.75}},
        True,
    ),
    "mrope on text": (
        "hybrid",
        {"rope_parameters": _QWEN_ROPE | {"type": "mrope", "mrope_section": [1, 1, 2]}},
        False,
    ),
    "windows' own rope base": ("gemma3", {"rope_local_base_freq": 50.0}, True),
    "linear rope outside windows": (
        "gemma3",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        True,
    ),
    "proportional rope": (
        "gemma4",
        {"rope_parameters": {"full_attention": _FULL_ROPE, "sliding_attention": _WINDOW_ROPE}},
        True,
    ),
    "attention scale": ("gemma3", {"query_pre_attn_scalar": 8}, True),
    "norm epsilon": ("llama", {"rms_norm_eps": 0.1}, True),
    "attention bias": ("llama", {"attention_bias": True}, False),
    "attention bias, gated": ("qwen3_next", {"attention_bias": True}, False),
    "feed-forward bias": ("llama", {"mlp_bias": True}, False),
    "windows by layer type": (
        "llama",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40},
        True,
    ),
    "tied llama": ("llama", {"tie_word_embeddings": True}, False),
    "untied qwen3": ("qwen3", {"tie_word_embeddings": False}, False),
    "tied hybrid": ("hybrid", {"tie_word_embeddings": True}, False),
    "untied gemma4": ("gemma4", {"tie_word_embeddings": False}, False),
    "router not normalised": ("qwen3_moe", {"norm_topk_prob": False}, True),
    "router not normalised, shared expert": ("hybrid_moe", {"norm_topk_prob": False}, True),
    "experts in every other layer": ("qwen3_moe", {"decoder_sparse_step": 2}, False),
    "a dense layer by name": ("qwen3_moe", {"mlp_only_layers": [0]}, False),
    "logit cap": ("gemma4", {"final_logit_softcapping": 2.0}, True),
    "no logit cap": ("gemma4_moe", {"final_logit_softcapping": None}, False),
    "double width off": ("gemma4", {"use_double_wide_mlp": False}, False),
    "no shared caches": ("gemma4", {"num_kv_shared_layers": 0}, False),
    "keys are no values": ("gemma4_moe", {"attention_k_eq_v": False}, False),
    "no input per layer": ("gemma4", {"hidden_size_per_layer_input": 0}, False),
    "window pattern": ("gemma3", {"sliding_window_pattern": 2}, True),
}


def varied(family: str, keys: dict) -> dict:
    """Return a family's config with some keys of its language model replaced."""
    config = dict(FAMILIES[family])
    if "text_config" in config:
        return config | {"text_config": config["text_config"] | keys}
    return config | keys


def distance(a, b) -> float:
    return float(np.abs(a.logits - b.logits).max())


@pytest.mark.parametrize("bits", [None, 4], ids=["fp32", "4-bit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_its_oracle_over_200_steps(family, bits, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES[family], steps=STEPS, bits=bits)
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == STEPS
    assert distance(ours, theirs) < BOUND


@pytest.mark.parametrize("name", VARIANTS)
def test_a_key_that_changes_the_arithmetic_is_obeyed(name, tmp_path):
    family, keys, loads_plain = VARIANTS[name]
    steps = 24
    config = varied(family, keys)
    theirs, ours = compare(tmp_path, config, steps=steps)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND
    if loads_plain:  # the same weights under the plain config: somebody who missed the key
        (tmp_path / "config.json").write_text(json.dumps(FAMILIES[family]))
        prompt = tuple(np.random.default_rng(1).integers(0, 256, 100).tolist())
        missed = engine_steps(load_decoder(tmp_path), prompt, 1)
        assert np.abs(missed.logits[0] - theirs.logits[0]).max() > 10 * BOUND


@pytest.mark.parametrize("prompt_tokens", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK])
@pytest.mark.parametrize("family", ["hybrid_moe", "gemma3", "gemma4"])
def test_any_prompt_length_equals_the_oracle(family, prompt_tokens, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES[family], steps=8, prompt_tokens=prompt_tokens)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 8])
def test_other_bit_widths_equal_the_oracle(bits, tmp_path):
    theirs, ours = compare(tmp_path, FAMILIES["llama"], steps=12, bits=bits)
    assert ours.tokens == theirs.tokens
    assert distance(ours, theirs) < BOUND


def test_a_changed_weight_is_seen(tmp_path):
    """The comparison can fail: one weight of one layer off by a hundredth."""
    config = FAMILIES["llama"]
    model = oracle_model(config)
    save(tmp_path, model, config)
    prompt = tuple(range(60))
    ours = engine_steps(load_decoder(tmp_path), prompt, 4)
    w = model.model.layers[1].mlp.down_proj.weight
    w[3, 5] = w[3, 5] + 0.01
    assert distance(ours, oracle_steps(model, prompt, 4)) > BOUND


# ---- the parts against their definitions, in numpy and float64 -----------------------------------

CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # fp32 sums of a few hundred products of size one
LENGTHS = (1, 2, 255, 256, 257, 511, 512, 513)
GROUPS, DIM = 2, 8


def kept(rng, count: int, base: int = 3, rows: int = 700) -> KeyRange:
    """Return keys and values of `count` rows amid rows of others, which are NaN."""
    k, v = (np.full((GROUPS, rows, DIM), np.nan, np.float32) for _ in range(2))
    for x in (k, v):
        x[:, base : base + count] = rng.normal(size=(GROUPS, count, DIM))
    return KeyRange(mx.array(k), mx.array(v), base, count)


def softmax_mean(q, keys: KeyRange, allowed) -> np.ndarray:
    """Return `[H, D]`: the mean of the allowed values, weighed by softmax of q k."""
    own = slice(keys.base, keys.base + keys.count)
    k, v = (np.array(x, np.float64)[:, own] for x in (keys.k, keys.v))
    out = []
    for head, one in enumerate(np.array(q, np.float64)):
        group = head // (len(q) // GROUPS)
        scores = k[group][allowed] @ one
        weights = np.exp(scores - scores.max())
        out.append(weights @ v[group][allowed] / weights.sum())
    return np.array(out)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("reads", ["all", "last", "first", "last 40", "none of block 0"])
def test_decode_attention_is_the_softmax_mean_of_what_may_be_read(count, reads):
    rng = np.random.default_rng(count)
    keys, q = kept(rng, count), rng.normal(size=(4, DIM)).astype(np.float32) * 2
    at = np.arange(count)
    allowed = {
        "all": None,
        "last": at == count - 1,
        "first": at == 0,
        "last 40": at >= count - 40,
        "none of block 0": (at >= 256) if count > 256 else at >= 0,
    }[reads]
    got = decode_lane(Ops(), mx.array(q), keys, allowed)
    want = softmax_mean(q, keys, at >= 0 if allowed is None else allowed)
    np.testing.assert_allclose(np.array(got), want, **CLOSE)


@pytest.mark.parametrize("count", LENGTHS)
def test_prefill_attention_is_the_softmax_mean_for_every_query(count):
    """Query t reads what is not later, or of that the last 5; blocks may hold nothing for it."""
    rng = np.random.default_rng(count)
    keys, rows = kept(rng, count), 3
    q = rng.normal(size=(4, rows, DIM)).astype(np.float32) * 2
    num_blocks = -(-count // 256) + 1  # one more than there are rows for
    slots = np.arange(num_blocks * 256)
    for window in (None, 5):
        ask = np.array([max(0, count - 300), max(0, count - 2), count - 1])
        allowed = slots[None] <= ask[:, None]
        if window:
            allowed &= slots[None] > ask[:, None] - window
        got = np.array(prefill_window(Ops(), mx.array(q), keys, num_blocks, allowed))
        for t in range(rows):
            want = softmax_mean(q[:, t], keys, allowed[t][:count])
            np.testing.assert_allclose(got[:, t], want, **CLOSE)


def test_blocks_are_added_in_their_order():
    """Weights of 1, 1e8 and -1e8: only from block 0 on does fp32 lose the 1."""
    one = mx.ones((1, 1, 1, 1))
    parts = [Partial(one, one, one * value) for value in (1.0, 1e8, -1e8)]
    assert combine(parts).item() == 0.0
    assert combine(parts[::-1]).item() == pytest.approx(1 / 3)
    together = Partial(*(mx.concatenate(x, axis=1) for x in zip(*parts, strict=True)))
    assert combine([together]).item() == 0.0
    assert sum_in_order(mx.array([[1.0, 1e8, -1e8]])).item() == 0.0
    assert sum_in_order(mx.array([[-1e8, 1e8, 1.0]])).item() == 1.0


def test_rows_of_a_pass_by_hand():
    place = Place(3, 100, 64, 56)
    step = Step((Lane(place, 9), Lane(place._replace(slot=5), 0)), 4)
    assert (step.num_live, step.positions.tolist()) == (2, [9, 0, 9, 9])
    assert step.slots == [3, 5, 3, 3]
    rows = mx.arange(8, dtype=mx.float32).reshape(4, 2)
    assert step.fill([rows[1], rows[2]]).tolist() == [[2, 3], [4, 5], [2, 3], [2, 3]]
    assert step.own_choice(rows).tolist() == [[0, 1], [2, 3], [0, 1], [0, 1]]
    assert np.isnan(np.array(step.poisoned(rows))).tolist() == [[False] * 2] * 2 + [[True] * 2] * 2
    window = Window(place, 64, 8, 66, 69)  # rows 2, 3, 4 are present
    assert window.rows == slice(2, 5)
    assert window.queries.tolist() == [66, 66, 66, 67, 68, 68, 68, 68]
    assert window.fill(mx.array([1, 2, 3])).tolist() == [0, 0, 1, 2, 3, 0, 0, 0]
    assert window.own_choice(mx.arange(8)).tolist() == [2, 2, 2, 3, 4, 2, 2, 2]
    absent = [True, True, False, False, False, True, True, True]
    assert np.isnan(np.array(window.poisoned(mx.zeros((8,))))).tolist() == absent
    whole = Window(place, 64, 8, 64, 72)
    assert whole.poisoned(rows) is rows or whole.own_choice(mx.arange(8)).tolist() == [*range(8)]


def test_the_router_orders_by_score_then_index():
    rng = np.random.default_rng(4)
    scores = rng.integers(-3, 4, (50, 16)).astype(np.float32) / 4  # full of ties, half below zero
    scores[0] = 0.0
    scores[0, ::2] = -0.0  # no less than 0.0: all sixteen tie
    scores[1, :3] = [1e-40, -1e-40, 3e38]
    want = [sorted(range(16), key=lambda i, row=row: (-float(row[i]), i))[:8] for row in scores]
    assert top_k(mx.array(scores), 8).tolist() == want
    assert top_k(mx.array(scores[:2]), 1).tolist() == [[0], [2]]


@pytest.mark.parametrize("normalises", [True, False])
@pytest.mark.parametrize("shared", [0, 6])
@pytest.mark.parametrize(
    "guards", [Safeguards(), Safeguards(ordered_router=False)], ids=["own", "stock"]
)
def test_a_mixture_is_the_weighted_sum_of_its_best_experts(normalises, shared, guards):
    rng = np.random.default_rng(9)
    num, top, hidden, inner, rows = 6, 3, 8, 10, 30
    shapes = {"gate": (num, hidden), "switch_mlp.gate_proj": (num, inner, hidden)}
    shapes |= {
        "switch_mlp.up_proj": (num, inner, hidden),
        "switch_mlp.down_proj": (num, hidden, inner),
    }
    if shared:
        shapes |= {"shared_expert.gate_proj": (shared, hidden), "shared_expert_gate": (1, hidden)}
        shapes |= {
            "shared_expert.up_proj": (shared, hidden),
            "shared_expert.down_proj": (hidden, shared),
        }
    w = {
        f"m.{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    rule = MoeFfn(
        num_experts=num,
        top_k=top,
        intermediate=inner,
        normalises=normalises,
        shared_intermediate=shared,
    )
    mixture = Mixture(rule, {name: mx.array(value) for name, value in w.items()}, "m", hidden)
    x = rng.normal(size=(rows, hidden)).astype(np.float32)
    place = Place(0, 0, 64, 64)
    window = Window(place, 0, rows, 0, rows)
    got = np.array(mixture(Context(Ops(), guards), mx.array(x), window))

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    def glu(one, name, expert=...):
        gate, up, down = (
            np.float64(w[f"m.{name}.{p}_proj.weight"][expert]) for p in ("gate", "up", "down")
        )
        z = gate @ one
        return down @ (z * sigmoid(z) * (up @ one))

    for row, one in enumerate(np.float64(x)):
        z = np.float64(w["m.gate.weight"]) @ one
        share = np.exp(z) / np.exp(z).sum()
        best = sorted(range(num), key=lambda e: -share[e])[:top]
        total = sum(share[best]) if normalises else 1.0
        want = sum(share[e] / total * glu(one, "switch_mlp", e) for e in best)
        if shared:
            want = want + sigmoid(np.float64(w["m.shared_expert_gate.weight"]) @ one) * glu(
                one, "shared_expert"
            )
        np.testing.assert_allclose(got[row], want, rtol=2e-4, atol=2e-4)


def test_the_delta_rule_token_by_token():
    """`S = decay S; S += beta (v - S k) k^T; y = S q`, in float64 over five tokens."""
    rng = np.random.default_rng(2)
    tokens, heads, value, key = 5, 3, 4, 6
    q, k = (rng.normal(size=(tokens, heads, key)).astype(np.float32) for _ in range(2))
    v = rng.normal(size=(tokens, heads, value)).astype(np.float32)
    decay, beta = (rng.uniform(0.1, 0.9, (tokens, heads)).astype(np.float32) for _ in range(2))
    state = rng.normal(size=(1, heads, value, key)).astype(np.float32)
    y, after = walk(*(mx.array(x) for x in (q, k, v, decay, beta, state)))
    s, outs = np.float64(state[0]), []
    for t in range(tokens):
        s = s * decay[t][:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", s, k[t]))
        s = s + np.einsum("hv,hk->hvk", d, k[t])
        outs.append(np.einsum("hvk,hk->hv", s, q[t]))
    np.testing.assert_allclose(np.array(y), outs, **CLOSE)
    np.testing.assert_allclose(np.array(after)[0], s, **CLOSE)
