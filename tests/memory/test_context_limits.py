"""The rule for contexts one token and one byte either side of each limit, and what it offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwisp.errors import BadInput
from qwisp.memory.admission import LADDER_TOKENS, ContextAdmission
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.refusal import Offer
from qwisp.memory.weights import Weights
from qwisp.spec.layers import SlidingWindow
from qwisp.spec.machine import MachineSpec
from qwisp.units import GIB, KIB, MIB

from .test_serving_rules import GEMMA, M1, OVERHEAD, PLAIN, QWEN, box, spec

# Rows of 2,048 bytes, in 8 bits of 4 x 2 x 4 x 34 = 1,088; then each token of the context also
# costs 2 x (512 + 8 x 256) bytes of scores and 2 x 256 of a layer's rows while a chunk is read.
EIGHT_BIT_ROW, EIGHT_BIT_PEAK = 1088, 2 * (512 + 8 * 256) + 2 * 256
LONG = replace(PLAIN, context_max_tokens=2**30)


def offers(rule: ContextAdmission, context: int) -> dict[str, tuple[int | str, int, int | None]]:
    refusal = rule.check(context)
    assert refusal is not None
    for offer in refusal.offers:
        assert isinstance(offer, Offer)
    return {o.change: (o.value, o.context_tokens, o.needs_bytes) for o in refusal.offers}


@pytest.mark.parametrize("lanes", [1, 3])
def test_memory_is_used_to_the_last_byte_and_not_one_more(lanes):
    rule = ContextAdmission(PLAIN, box(1000 * 2048 * lanes), weights=0, lanes=lanes)
    assert rule.check(1000) is None
    assert rule.largest() == 1000
    refusal = rule.check(1001)
    assert (refusal.rule, refusal.lanes) == ("machine memory", lanes)
    assert refusal.needs_bytes == OVERHEAD + 1001 * 2048 * lanes
    assert refusal.budget_bytes == OVERHEAD + 1000 * 2048 * lanes
    assert refusal.budget_rule.startswith("box of ")
    less = replace(rule, machine=box(1000 * 2048 * lanes - 1))
    assert (less.check(1000).rule, less.largest()) == ("machine memory", 999)
    assert rule.admit(1000) == 1000


def test_the_largest_lies_between_one_token_and_the_native_maximum():
    assert ContextAdmission(PLAIN, box(2048), weights=0).largest() == 1
    assert ContextAdmission(PLAIN, box(2047), weights=0).largest() is None
    assert ContextAdmission(PLAIN, box(2**40 - OVERHEAD), weights=0).largest() == 262144
    assert ContextAdmission(PLAIN).largest() == 262144


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_unchunked_caches_of_all_lanes_may_fill_16_gib_and_no_more(lanes):
    rule = ContextAdmission(LONG, prefill="unchunked", lanes=lanes)
    most = 16 * GIB // (2048 * lanes)
    assert rule.unchunked_kv_bytes(most) == 16 * GIB
    assert rule.check(most) is None
    refusal = rule.check(most + 1)
    assert (refusal.rule, refusal.budget_rule) == ("unchunked KV budget",) * 2
    assert (refusal.needs_bytes, refusal.budget_bytes) == (16 * GIB + 2048 * lanes, 16 * GIB)
    assert rule.largest() == most
    assert ContextAdmission(LONG, lanes=lanes).check(most + 1) is None


def test_the_first_limit_that_is_broken_is_the_one_named():
    tiny = box(0, limit_bytes=1)
    unchunked = ContextAdmission(LONG, tiny, prefill="unchunked", weights=0)
    assert unchunked.check(0).rule == "positive"
    assert unchunked.check(2**30 + 1).rule == "native maximum"
    assert unchunked.check(2**30).rule == "unchunked KV budget"
    assert unchunked.check(2**30).budget_rule == "unchunked KV budget", "not the machine's words"
    assert unchunked.check(1).rule == "machine memory"
    assert replace(unchunked, prefill="chunked").check(2**30).rule == "machine memory"


@pytest.mark.parametrize(
    ("native", "ladder"),
    [
        (4095, (4095,)),
        (4096, (4096,)),
        (8191, (4096,)),
        (8192, (4096, 8192)),
        (262143, LADDER_TOKENS[:-1]),
        (2**30, LADDER_TOKENS),
        (None, LADDER_TOKENS),
    ],
)
def test_a_rung_is_there_when_the_model_reaches_it(native, ladder):
    rule = ContextAdmission(replace(PLAIN, context_max_tokens=native))
    assert rule.ladder == rule.legal == ladder
    assert rule.native_max_tokens == (native or 262144)


def test_a_context_above_the_native_maximum_is_only_offered_a_smaller_one():
    row = 262144 * 20480 + 25 * 1280 * 8192
    assert offers(ContextAdmission(GEMMA, lanes=4), 262145) == {
        "smaller context": (262144, 262144, 4 * row)
    }
    short = ContextAdmission(replace(PLAIN, context_max_tokens=10_000))
    assert offers(short, 10_001) == {"smaller context": (8192, 8192, 8192 * 2048)}
    shorter = ContextAdmission(replace(PLAIN, context_max_tokens=3000))
    assert offers(shorter, 3001) == {"smaller context": (3000, 3000, 3000 * 2048)}
    assert offers(short, 0) == {}
    assert short.check(0).todo == "use one of 4K, 8K"
    unknown = offers(ContextAdmission(None), 262145)
    assert unknown == {"smaller context": (262144, 262144, None)}


def test_offers_are_those_that_just_fit():
    """Eight lanes of 1,000 tokens: 8-bit rows and their peak, or seven lanes of 16-bit rows, take
    14,336 bytes a token each.
    """
    assert 8 * EIGHT_BIT_ROW + EIGHT_BIT_PEAK == 7 * 2048 == 14_336
    rule = ContextAdmission(PLAIN, box(14_336_000), weights=0, lanes=8)
    assert offers(rule, 1000) == {
        "smaller context": (875, 875, OVERHEAD + 875 * 8 * 2048),
        "fewer lanes": (7, 1000, OVERHEAD + 14_336_000),
        "8-bit KV": (8, 1000, OVERHEAD + 14_336_000),
    }
    less = replace(rule, machine=box(14_336_000 - 1))
    assert offers(less, 1000) == {
        "smaller context": (874, 874, OVERHEAD + 874 * 8 * 2048),
        "fewer lanes": (6, 1000, OVERHEAD + 6 * 2_048_000),
    }
    one = replace(rule, machine=box(2_048_000))
    assert offers(one, 1000)["fewer lanes"] == (1, 1000, OVERHEAD + 2_048_000)
    assert "fewer lanes" not in offers(replace(one, machine=box(2_047_999)), 1000)
    assert "fewer lanes" not in offers(replace(one, lanes=1), 1001)
    eight = replace(rule, dialect=rule.dialect.with_kv_bits(8), machine=box(14_335_999))
    assert "8-bit KV" not in offers(eight, 1000)


def test_a_smaller_context_is_the_largest_legal_rung():
    rule = ContextAdmission(PLAIN, box(9000 * 2048), weights=0)
    assert offers(rule, 16384)["smaller context"] == (8192, 8192, OVERHEAD + 8192 * 2048)
    assert rule.legal == rule.check(16384).legal_tokens == (4096, 8192)


RINGS = spec(SlidingWindow(kv_heads=2, k_dim=64, v_dim=64, window_tokens=1000))  # 512 bytes a row


@pytest.mark.parametrize(
    ("rows", "chunk"), [(1256, None), (1255, 128), (1128, 128), (1127, 64), (1064, 64), (1063, 0)]
)
def test_a_narrower_chunk_is_offered_where_its_ring_fits(rows, chunk):
    rule = ContextAdmission(RINGS, box(512 * rows), weights=0)
    if chunk is None:
        assert rule.check(2000) is None
        return
    found = offers(rule, 2000).get("smaller prefill chunk")
    expected = (chunk, 2000, OVERHEAD + 512 * (1000 + chunk)) if chunk else None
    assert found == expected
    narrow = replace(rule, dialect=Qwisp(chunk_tokens=chunk or 64))
    assert chunk == 0 or narrow.check(2000) is None


def test_chunked_prefill_is_offered_to_those_without_it():
    rule = ContextAdmission(GEMMA, prefill="unchunked")
    ring = 98304 * 20480 + 25 * 1280 * 8192
    found = offers(rule, 98304)
    assert found["smaller context"] == (65536, 65536, int(13.75 * GIB))
    assert found["chunked prefill"] == ("chunked", 98304, ring)
    assert found["8-bit KV"] == (8, 98304, int(20.625 * GIB) * 34 // 64)
    assert list(found) == ["smaller context", "chunked prefill", "8-bit KV"]
    assert "chunked prefill" not in offers(replace(rule, prefill="chunked", machine=box(9)), 98304)
    poor = replace(rule, machine=box(MIB), weights=0)
    assert "chunked prefill" not in offers(poor, 98304)
    lanes = offers(replace(rule, lanes=3), 65536)
    assert lanes["fewer lanes"] == (1, 65536, int(13.75 * GIB))


def test_of_all_supported_models_the_least_hungry_speaks_for_an_unknown_one():
    """Nobody published the weights of Flash-Next, so that what is known of it is the least."""
    tiny = MachineSpec(name="tiny", title="tiny", memory_bytes=KIB)
    refusal = ContextAdmission(None, tiny).check(4096)
    assert refusal.model == "qwen3.8-flash-next"
    # 36 states, 4,096 rows of 13 x 2,304 bytes and 1,024 pooled ones.
    state = 36 * (3 * 10240 * 2 + 48 * 128 * 128 * 4)
    assert refusal.needs_bytes == OVERHEAD + state + 13 * (4096 * 2304 + 1024 * 256)
    assert ContextAdmission(None).native_max_tokens == 262144
    assert ContextAdmission(None).check(262144) is None
    with pytest.raises(BadInput, match="not known yet"):
        ContextAdmission(None).memory(4096)


@pytest.mark.parametrize(("lanes", "good"), [(0, False), (1, True), (4096, True), (4097, False)])
def test_lanes_are_counted_from_1_to_4096(lanes, good):
    if good:
        assert ContextAdmission(PLAIN, lanes=lanes).lanes == lanes
        return
    with pytest.raises(BadInput, match=f"{lanes} lanes"):
        ContextAdmission(PLAIN, lanes=lanes)


def test_a_setting_reaches_the_memory_that_is_judged():
    pack = Weights(file_bytes=3)
    rule = ContextAdmission(QWEN, M1, prefill="unchunked", weights=pack, lanes=2)
    state = 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert {term.name: term.num_bytes for term in rule.memory(4096).terms} == {
        "weights": 3,
        "runtime overhead": OVERHEAD,
        "cache": 2 * (4096 * 20480 + state),
    }
    assert ContextAdmission(QWEN, weights=0).memory(4096)["weights"] == 0
    assert ContextAdmission(QWEN).memory(4096)["weights"] == 19_546_491_213
    lanes = ContextAdmission(PLAIN, box(9), dialect=LlamaCpp(n_seq=4), lanes=4, weights=0)
    assert lanes.memory(256)["cache"] == 4 * 256 * 2048
    assert (
        offers(replace(lanes, machine=box(0, limit_bytes=3 * 512 * 2048)), 512)["fewer lanes"][0]
        == 3
    )
