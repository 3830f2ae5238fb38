"""The rules that turn layers into bytes, one by one, either side of each boundary, by hand."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.memory.dialect import (
    Dialect,
    Terms,
    add_terms,
    conv_elements,
    per_head_rows,
    ring_rows,
    state_elements,
)
from qwisp.memory.dialects import dialect
from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.pool import rank_rows, shard, shard_heads
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.footprint import MAX_CONTEXT_TOKENS, cache_bytes
from qwisp.memory.row_types import row_bytes, type_of
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Mamba1,
    Mamba2,
    Mla,
    PooledAttention,
    ShortConv,
    SlidingWindow,
)
from qwisp.spec.model import ModelSpec

FULL = FullAttention(kv_heads=2, k_dim=64, v_dim=32)
RING = SlidingWindow(kv_heads=2, k_dim=64, v_dim=32, window_tokens=1024)
POOLED = PooledAttention(row_elements=32, pooled_elements=8, pool_tokens=4)
LATENT = Mla(kv_lora_rank=512, rope_dim=64, heads=4, nope_dim=32, v_dim=16)
DELTA = GatedDelta(value_heads=2, key_heads=1, value_dim=8, key_dim=4, conv_kernel=4)
MAMBA2 = Mamba2(heads=3, head_dim=5, state_dim=7, groups=2, conv_kernel=4, inner_dim=15)
MAMBA1 = Mamba1(inner_dim=10, state_dim=16, conv_kernel=4)
CONV = ShortConv(hidden=100, kernel=3)


def model(*layers: object, element_bytes: int = 2, family: str = "geometry") -> ModelSpec:
    return ModelSpec(
        name="by hand", family=family, layers=tuple(layers), element_bytes=element_bytes
    )


def total(tokens: int, rules: Dialect, *layers: object, **spec: object) -> int:
    return cache_bytes(model(*layers, **spec), tokens, rules).total_bytes


@pytest.mark.parametrize(
    ("tokens", "rows"), [(1, 1), (1151, 1151), (1152, 1152), (1153, 1152), (65536, 1152)]
)
def test_a_ring_is_a_window_and_a_chunk_and_never_more_than_the_context(tokens, rows):
    assert ring_rows(tokens, 1024, 128) == rows
    # 2 heads x (64 + 32) elements of 2 bytes are 384 bytes a row.
    for rules in (Fieldfare(), Qwisp(chunk_tokens=128)):
        assert total(tokens, rules, RING) == 384 * rows
    assert total(tokens, Fieldfare(chunked=False), RING) == 384 * tokens


@pytest.mark.parametrize(("tokens", "rows"), [(1023, 1023), (1024, 1024), (1025, 1024)])
def test_the_exact_allocator_keeps_a_window_and_no_chunk(tokens, rows):
    assert total(tokens, Dialect(), RING) == 384 * rows


def test_keys_and_values_have_their_own_width_and_type():
    # Ten keys of 128 elements and ten values of 64.
    plain = cache_bytes(model(FULL), 10, Dialect()).terms
    assert plain == Terms(full_key_bytes=2560, full_value_bytes=1280)
    mixed = cache_bytes(model(FULL), 10, Dialect(k_type="q8_0", v_type="q4_0")).terms
    assert mixed == Terms(full_key_bytes=10 * 4 * 34, full_value_bytes=10 * 2 * 18)
    ring = cache_bytes(model(RING), 10, Dialect(k_type="q8_0")).terms
    assert ring == Terms(ring_key_bytes=10 * 4 * 34, ring_value_bytes=1280)
    assert cache_bytes(model(FULL, element_bytes=4), 10, Dialect()).terms == plain.times(2)


@pytest.mark.parametrize(
    ("row_type", "num_bytes"),
    [
        *(("f32", 256), ("f16", 128), ("bf16", 128), ("fp8", 64), ("int8", 64)),
        *(("q8_0", 68), ("q6_0", 52), ("q5_1", 48), ("q5_0", 44), ("q4_1", 40), ("q4_0", 36)),
        *(("iq4_nl", 36), ("float32", 256), ("fp32", 256), ("float16", 128), ("fp16", 128)),
        *(("bfloat16", 128), ("f8", 64), ("fp8_e4m3", 64), ("fp8_e5m2", 64), ("fp8_e4m3fn", 64)),
        ("f8_e4m3", 64),
    ],
)
def test_sixty_four_elements_of_every_type(row_type, num_bytes):
    """Blocks of 32 carry a 16-bit scale, and those called _1 a 16-bit minimum too."""
    assert row_bytes(row_type, 64) == num_bytes


def test_a_row_fills_whole_blocks_or_is_refused():
    assert row_bytes("q8_0", 32) == 34
    for elements in (31, 33):
        with pytest.raises(BadInput, match="whole q8_0 blocks of 32"):
            row_bytes("q8_0", elements)
    assert (type_of(4), type_of(2), type_of(1)) == ("f32", "bf16", "bf16")


def test_a_latent_row_is_one_row_and_a_row_per_head_is_two():
    assert cache_bytes(model(LATENT), 10, Dialect()).terms == Terms(full_key_bytes=10 * 2 * 576)
    # Keys of 4 x (32 + 64) elements, values of 4 x 16.
    assert per_head_rows(Dialect(), LATENT, model(LATENT)) == (768, 128)
    for lost in ({"heads": 0}, {"v_dim": 0}):
        layer = Mla(**{"kv_lora_rank": 512, "rope_dim": 64, "heads": 4, "v_dim": 16, **lost})
        with pytest.raises(BadInput, match="head sizes are not given"):
            per_head_rows(Dialect(), layer, model(layer))


@pytest.mark.parametrize(
    ("tokens", "pooled"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (4096, 1024)]
)
def test_a_pool_that_is_begun_has_its_row(tokens, pooled):
    found = cache_bytes(model(POOLED), tokens, Dialect()).terms
    assert found == Terms(full_key_bytes=64 * tokens, pooled_bytes=16 * pooled)


def test_a_further_token_costs_its_share_of_a_pooled_row_rounded_up():
    def per_token(*layers: object) -> int:
        return cache_bytes(model(*layers), 1, Dialect()).bytes_per_token

    assert per_token(POOLED) == 64 + 16 // 4
    three = PooledAttention(row_elements=1, pooled_elements=1, pool_tokens=3)
    assert per_token(three) == 3, "2 and 2 thirds of a byte"
    # Pools of 4 and 3 meet every 12 tokens: 12 x (64 + 2) + 3 x 16 + 4 x 2 = 848 bytes.
    assert per_token(POOLED, three) == 71, "70 and two thirds"
    assert per_token(FULL, LATENT, RING, DELTA) == 384 + 1152, "rings are full, states are there"


@pytest.mark.parametrize(
    ("layer", "state", "tail"),
    [
        (DELTA, 2 * 8 * 4, 3 * (2 * 1 * 4 + 2 * 8)),
        (MAMBA2, 3 * 5 * 7, 3 * (15 + 2 * 2 * 7)),
        (MAMBA1, 10 * 16, 3 * 10),
        (CONV, 0, 2 * 100),
        (FULL, 0, 0),
    ],
)
def test_a_recurrent_layer_keeps_a_state_and_the_inputs_of_its_convolution(layer, state, tail):
    assert (state_elements(layer), conv_elements(layer)) == (state, tail)
    if layer is FULL:
        return
    for element_bytes in (2, 4):  # a state is fp32 whatever the model's type
        spec = model(layer, element_bytes=element_bytes)
        expected = Terms(state_bytes=4 * state, conv_bytes=element_bytes * tail)
        assert cache_bytes(spec, 5, Dialect()).terms == expected
        assert cache_bytes(spec, 5, Fieldfare()).conv_bytes == 2 * tail


def test_terms_add_up_by_name():
    one, two = Terms(1, 2, 3, 4, 5, 6, 7), Terms(10, 20, 30, 40, 50, 60, 70)
    assert add_terms([one, two]) == Terms(11, 22, 33, 44, 55, 66, 77)
    assert one.times(3) == Terms(3, 6, 9, 12, 15, 18, 21)
    assert add_terms([]) == Terms()


def test_a_footprint_names_what_its_terms_hold():
    found = cache_bytes(model(FULL, RING, POOLED, DELTA), 4, Fieldfare())
    assert found.full_bytes == 4 * 384 + 4 * 64
    assert (found.ring_bytes, found.pooled_bytes) == (4 * 384, 16)
    assert (found.state_bytes, found.conv_bytes, found.fixed_bytes) == (256, 144, 400)
    assert found.key_bytes == 2 * 4 * 256 + 4 * 64
    assert found.total_bytes == 3072 + 256 + 16 + 400
    assert list(found.by_term()) == ["full", "ring", "pooled", "state", "conv"]
    assert list(cache_bytes(model(FULL), 4).by_term()) == ["full"]
    assert (found.dialect, found.context_tokens, found.sequences) == ("fieldfare", 4, 1)


@pytest.mark.parametrize("tokens", [0, -1, MAX_CONTEXT_TOKENS + 1, True, 4.0, None])
def test_a_context_is_a_whole_number_in_range(tokens):
    assert cache_bytes(model(FULL), MAX_CONTEXT_TOKENS).total_bytes == 384 * 2**31
    with pytest.raises(BadInput, match="context"):
        cache_bytes(model(FULL), tokens)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 1023, 1279, 1280, 1281, 4096])
def test_a_session_is_its_rows_its_ring_and_its_state(rows):
    spec = model(FULL, FULL, RING, POOLED, DELTA, CONV)
    size = SessionBytes(spec)
    ring = 384 * min(rows, 1280)
    state = 400 + 2 * 2 * 100
    assert size.bytes(rows) == 2 * 384 * rows + 64 * rows + 16 * -(-rows // 4) + ring + state
    assert (size.fixed_bytes, size.row_bytes) == (state, 2 * 384 + 68)
    assert size.ring_bytes(rows) == ring
    assert size.lane_bytes(rows) == ring + state
    assert SessionBytes(spec, chunk_tokens=1).ring_bytes(4096) == 384 * 1025
    assert SessionBytes(spec, Fieldfare(), 64).ring_bytes(4096) == 384 * 1088


@pytest.mark.parametrize(
    ("heads", "ranks", "each"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (8, 16, 1), (1, 4, 1), (6, 3, 2)]
)
def test_heads_are_divided_over_ranks_and_copied_where_there_are_more_ranks(heads, ranks, each):
    assert shard_heads(heads, ranks) == each
    layer = FullAttention(kv_heads=heads, k_dim=64, v_dim=32)
    assert rank_rows(layer, ranks) == FullAttention(kv_heads=each, k_dim=64, v_dim=32)
    ring = SlidingWindow(kv_heads=heads, k_dim=64, v_dim=32, window_tokens=9)
    assert rank_rows(ring, ranks).kv_heads == each


def test_heads_that_do_not_divide_are_refused_and_a_latent_row_is_held_whole():
    for heads, ranks in ((6, 4), (4, 6)):
        with pytest.raises(BadInput, match=f"{heads} heads do not divide over {ranks} ranks"):
            shard_heads(heads, ranks)
    assert rank_rows(LATENT, 2) is LATENT
    per_head = rank_rows(LATENT, 2, latent=False)
    assert per_head == FullAttention(kv_heads=2, k_dim=96, v_dim=16)
    assert rank_rows(POOLED, 2) is POOLED
    for lost in ({"heads": 0}, {"v_dim": 0}):
        layer = Mla(**{"kv_lora_rank": 512, "rope_dim": 64, "heads": 4, "v_dim": 16, **lost})
        with pytest.raises(BadInput, match="head sizes"):
            rank_rows(layer, 2, latent=False)


@pytest.mark.parametrize(("elements", "each"), [(8, 4), (7, 4), (9, 5), (1, 1), (0, 0)])
def test_a_rank_holds_its_share_of_a_state_rounded_up(elements, each):
    assert shard(elements, 2) == each


@pytest.mark.parametrize(
    ("engine", "option", "good", "bad"),
    [
        ("llama.cpp", "n_seq", (1, 2**31), (0, -1, 2**31 + 1, True, "2", 1.0, None)),
        ("llama.cpp", "draft_copies", (0, 1), (-1, False)),
        ("llama.cpp", "unified", (True, False), (1, 0, "yes", None)),
        ("llama.cpp", "k_type", ("q8_0", None), (8, True)),
        ("mlx-lm", "kv_bits", (8, None), (0, "8", True)),
        ("vllm", "pool_tokens", (1, None), (0,)),
        ("fieldfare", "chunk_tokens", (1, 128), (0, None)),
    ],
)
def test_an_option_has_the_type_and_range_of_its_field(engine, option, good, bad):
    for value in good:
        assert getattr(dialect(engine, {option: value}), option) == value
    for value in bad:
        with pytest.raises(BadInput, match=f"option {option} of {engine}"):
            dialect(engine, {option: value})


def test_an_unknown_engine_or_option_is_named_with_what_there_is():
    with pytest.raises(BadInput, match="use mlx-lm"):
        dialect("mlxlm")
    with pytest.raises(BadInput, match="'n_seq'"):
        dialect("fieldfare", {"n_seq": 2})
    assert dialect("qwisp") == Qwisp()


@pytest.mark.parametrize(
    ("engine", "bits", "row_types"),
    [
        ("qwisp", 16, (None, None)),
        ("qwisp", 8, ("q8_0", "q8_0")),
        ("qwisp", 4, ("q4_0", "q4_0")),
        ("llama.cpp", 8, ("q8_0", "q8_0")),
        ("vllm", 8, ("fp8", "fp8")),
        ("vllm", 16, (None, None)),
        ("sglang", 8, ("fp8", "fp8")),
    ],
)
def test_a_width_of_rows_is_the_engines_own_type(engine, bits, row_types):
    found = dialect(engine).with_kv_bits(bits)
    assert (found.k_type, found.v_type) == row_types
    assert found.is_16_bit == (bits == 16)


def test_a_width_an_engine_has_not_is_refused_and_one_quantised_side_is_not_16_bit():
    assert dialect("mlx-lm").with_kv_bits(8).kv_bits == 8
    assert dialect("mlx-lm", {"kv_bits": 8}).with_kv_bits(16).kv_bits is None
    for engine in ("vllm", "sglang"):
        with pytest.raises(BadInput, match="no rows of 4 bits"):
            dialect(engine).with_kv_bits(4)
    for bits in (0, 2, 15, 17):
        with pytest.raises(BadInput, match=f"rows of {bits} bits"):
            Dialect().with_kv_bits(bits)
    assert not Dialect(k_type="q8_0").is_16_bit
    assert not Dialect(v_type="q8_0").is_16_bit
    assert Dialect(k_type="f32", v_type="bf16").is_16_bit


def test_lanes_and_chunks_are_set_where_an_engine_has_them():
    assert dialect("llama.cpp").with_lanes(3).n_seq == 3
    assert Qwisp().with_lanes(3) == Qwisp()
    assert Qwisp().with_chunk(64).chunk_tokens == 64
    assert dialect("llama.cpp").with_chunk(64).ubatch_tokens == 64
    assert dialect("vllm").with_chunk(64) == dialect("vllm")
    shared = dialect("llama.cpp", {"n_seq": 4, "unified": True})
    assert shared.engine_context(8192, 4) == 8192
    assert dialect("llama.cpp", {"n_seq": 4}).engine_context(8192, 4) == 32768
    assert dialect("vllm", {"n_seq": 4}).engine_context(8192, 4) == 8192


def test_without_chunks_windows_keep_the_context_in_each_engines_own_way():
    assert Fieldfare().unchunked(9000) == Fieldfare(chunked=False)
    assert dialect("llama.cpp").unchunked(9000).swa_full
    assert Qwisp().unchunked(9000).chunk_tokens == 9000
