"""Each hostile kernel alone alters results and catches the stock way; strict mode survives it."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.model.ops import Ops, QuantizedWeight
from qwisp.engine.proof.certificate import certify
from qwisp.engine.proof.certificate_runs import CASES
from qwisp.engine.proof.hostile import SHIMS, HostileOps
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.weights.loading import load_decoder
from qwisp.errors import BadInput
from qwisp.scheduling.settings import Settings

from .runs import CHUNK, prompts, run, sized

pytestmark = pytest.mark.mlx

# What is taken from strict mode for a shim to have something to catch.
STOCK_PART = {
    "products": ["fixed_width"],
    "attention": ["blocked_attention"],
    "sums": ["blocked_attention"],
    "experts": ["ordered_router"],
    # Eight rows of eight experts are sorted, fewer are not: a fixed width alone hides the switch.
    "sorting": ["ordered_router", "fixed_width"],
}


def without(names: list[str]) -> Safeguards:
    guards = Safeguards()
    for name in names:
        guards = guards.without(name)
    return guards


@lru_cache
def asked() -> dict:
    # 200 tokens and more of context for the long one, so that stock attention sees two lengths.
    return prompts([60, 5, 33, 200, 64, 1, 90, 20], seed=2)


def words(shims: list[str], guards: Safeguards, ids: list[int]) -> tuple[dict, HostileOps]:
    ops = HostileOps(shims, long_keys=128)
    layout = sized([256] * max(1, len(ids)))
    settings = Settings(chunk_tokens=CHUNK, budget_tokens=0)
    chosen = {i: asked()[i] for i in ids}
    r = run(
        "hybrid_moe",
        chosen,
        dict.fromkeys(ids, 12),
        layout=layout,
        settings=settings,
        safeguards=guards,
        ops=ops,
    )
    return {i: np.stack(r.replies[i].logits) for i in ids}, ops


@pytest.mark.parametrize("shim", list(STOCK_PART))
def test_each_shim_alone_catches_what_it_is_for(shim):
    guards = without(STOCK_PART[shim])
    together, ops = words([shim], guards, list(range(8)))
    assert ops.altered[shim] > 0
    alone = {i: words([shim], guards, [i])[0][i] for i in (0, 3)}
    assert any(not np.array_equal(alone[i], together[i]) for i in alone)


def test_batched_products_alone_catch_one_product_for_all_lanes():
    """A batched product over all lanes at once has as many matrices as there are neighbours."""
    rng = np.random.default_rng(0)
    a, b = (mx.array(rng.normal(0, 1, (8, 2, 4, 64)).astype(np.float32)) for _ in range(2))
    ops = HostileOps(["batched"])
    all_at_once = ops.batched_product(a, b.swapaxes(-1, -2))
    one = ops.batched_product(a[:1], b[:1].swapaxes(-1, -2))
    assert not mx.array_equal(all_at_once[:1], one)
    assert ops.altered["batched"] == 2


@pytest.mark.parametrize(("rows", "others"), [(8, (7, 9, 16, 32)), (9, (16, 32)), (16, (32,))])
@pytest.mark.parametrize("is_packed", [False, True])
def test_products_tell_five_ranges_of_rows(rows, others, is_packed):
    rng = np.random.default_rng(3)
    w = mx.array(rng.normal(0, 1, (64, 256)).astype(np.float32))
    x = mx.array(rng.normal(0, 1, (32, 256)).astype(np.float32))
    packed = QuantizedWeight(*mx.quantize(w, 64, 4), 64, 4)
    ops = HostileOps(["products"])

    def product(n: int) -> mx.array:
        y = ops.quantized_product(x[:n], packed) if is_packed else ops.product(x[:n], w.T)
        return y[:7]

    assert all(not mx.array_equal(product(rows), product(n)) for n in others)
    assert mx.array_equal(product(9), product(15))
    assert mx.array_equal(product(16), product(31))


def test_block_products_and_row_sums_follow_what_stands_beside_them():
    """Blocks padded to a neighbour's number get other bits, by either shim alone."""
    rng = np.random.default_rng(4)
    q, k = (mx.array(rng.normal(0, 1, (2, 5, n, 64)).astype(np.float32)) for n in (4, 256))
    weights = mx.array(rng.uniform(0, 1, (2, 5, 4, 256)).astype(np.float32))
    for shim in ("batched", "blocks"):
        ops = HostileOps([shim])
        padded = ops.batched_product(q, k.swapaxes(-1, -2))
        for n in (1, 2, 3, 4):
            own = ops.batched_product(q[:, :n], k[:, :n].swapaxes(-1, -2))
            assert not mx.array_equal(padded[:, :n], own), (shim, n)
            assert mx.allclose(padded[:, :n], own, rtol=1e-4, atol=1e-4)
        assert ops.altered[shim] == 5
    ops = HostileOps(["sums"])
    own, padded = ops.row_sum(weights[:, :3]), ops.row_sum(weights)[:, :3]
    assert not mx.array_equal(own, padded)
    assert mx.allclose(own, padded, rtol=1e-5)


@pytest.mark.parametrize("shim", [*STOCK_PART, "batched", "blocks"])
def test_strict_mode_survives_each_shim_alone(shim):
    together, ops = words([shim], Safeguards(), list(range(8)))
    alone = {i: words([shim], Safeguards(), [i])[0][i] for i in (0, 3, 5)}
    assert all(np.array_equal(alone[i], together[i]) for i in alone)
    # Strict mode never calls stock attention, so there is nothing for that shim to alter.
    assert (ops.altered[shim] > 0) == (shim != "attention")


def test_quantised_products_and_experts_follow_their_shape_too():
    rng = np.random.default_rng(1)
    w = mx.array(rng.normal(0, 1, (4, 64, 256)).astype(np.float32))
    packed = QuantizedWeight(*mx.quantize(w, 64, 4), 64, 4)
    one = QuantizedWeight(packed.weight[0], packed.scales[0], packed.biases[0], 64, 4)
    x = mx.array(rng.normal(0, 1, (8, 256)).astype(np.float32))
    ops = HostileOps(["products", "sorting", "experts"])
    eight, seven = ops.quantized_product(x, one), ops.quantized_product(x[:7], one)
    assert not mx.array_equal(eight[:7], seven)
    chosen = mx.array([0, 0, 0, 0, 0, 1, 2, 3])
    rows = x[:, None]
    unsorted = ops.quantized_expert_product(rows, packed, chosen, in_order=False)
    in_order = ops.quantized_expert_product(rows, packed, chosen, in_order=True)
    assert not mx.array_equal(unsorted[:5], in_order[:5])
    true = Ops().quantized_expert_product(rows, packed, chosen, in_order=False)
    assert mx.allclose(in_order, true, rtol=1e-4, atol=1e-4)  # another order, the same product
    assert min(ops.altered.values()) > 0


def test_a_width_of_12_is_certified_with_12_lanes():
    made = certify(
        load_decoder("tiny:hybrid_moe"),
        width=12,
        hostile=True,
        max_new=6,
        tokens=180,
        cases=CASES[:1],
    )
    assert made.holds
    assert len([row for row in made.rows if row.case == "together"]) == 12
    assert made.exercised.widths == {12}
    assert max(made.exercised.live) == 12


def test_an_unknown_shim_is_refused():
    with pytest.raises(BadInput, match="shim 'kindness' is not known"):
        HostileOps(["kindness"])


def test_every_shim_says_what_it_depends_on():
    assert set(SHIMS) == {*STOCK_PART, "batched", "blocks"}
