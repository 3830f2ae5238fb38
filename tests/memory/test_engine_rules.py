"""How other engines pad, grow, share and page, either side of each boundary, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwisp.errors import BadInput
from qwisp.memory.dialect import Terms
from qwisp.memory.engines.llama_cpp import LlamaCpp, pad
from qwisp.memory.engines.mlx_lm import MlxLm, grown_rows, rotating_rows
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.layers import FullAttention, GatedDelta, Mla, SlidingWindow

from .test_dialect_rules import CONV, DELTA, FULL, LATENT, MAMBA1, model, total

WINDOW = SlidingWindow(kv_heads=2, k_dim=64, v_dim=32, window_tokens=128)

# ---- llama.cpp ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "padded"), [(0, 0), (1, 256), (255, 256), (256, 256), (257, 512)]
)
def test_cells_are_padded_to_256(cells, padded):
    assert pad(cells, 256) == padded


@pytest.mark.parametrize(
    ("tokens", "slots", "unified", "stream", "all_cells"),
    [
        (256, 1, False, 256, 256),
        (257, 1, False, 512, 512),
        (1024, 4, False, 256, 1024),
        (1025, 4, False, 512, 2048),  # 1,280 over 4 are 320 each, padded again
        (1000, 3, False, 512, 1536),  # 1,024 over 3 are 341
        (1000, 3, True, 1024, 1024),
    ],
)
def test_a_context_is_padded_split_over_the_slots_and_padded_again(
    tokens, slots, unified, stream, all_cells
):
    rules = LlamaCpp(n_seq=slots, unified=unified)
    assert rules.stream_cells(tokens) == stream
    assert rules.full_rows(tokens) == all_cells
    assert total(tokens, rules, FULL) == 384 * all_cells


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({"ubatch_tokens": 127}, 256),
        ({"ubatch_tokens": 128}, 256),  # a window of 128 and the micro-batch
        ({"ubatch_tokens": 129}, 512),
        ({"ubatch_tokens": 96, "pad_cells": 32}, 224),
        ({"ubatch_tokens": 97, "pad_cells": 32}, 256),
        ({"ubatch_tokens": 4000}, 4096),  # never more than the stream has
        ({"ubatch_tokens": 128, "swa_full": True}, 4096),
    ],
)
def test_a_window_cache_holds_the_window_and_one_micro_batch(options, cells):
    rules = LlamaCpp(**options)
    assert rules.window_cells(4096, 128) == cells
    assert total(4096, rules, WINDOW) == 384 * cells


def test_the_usual_micro_batch_is_512_and_no_pad_is_added_to_whole_ones():
    assert LlamaCpp().window_cells(4096, 256) == 768
    assert LlamaCpp().window_cells(4096, 257) == 1024


def test_windows_of_slots_in_one_stream_lie_side_by_side():
    shared = LlamaCpp(n_seq=3, unified=True, ubatch_tokens=64, pad_cells=32)
    assert shared.ring_rows(4096, 128) == 448  # 3 x 128 + 64
    apart = LlamaCpp(n_seq=3, ubatch_tokens=64, pad_cells=32)
    assert apart.ring_rows(4096, 128) == 3 * 192


def test_every_slot_keeps_its_state_and_a_copy_per_draft_in_f32():
    plain = cache_bytes(model(DELTA), 256, LlamaCpp()).terms
    assert plain == Terms(state_bytes=256, conv_bytes=72 * 4)
    assert cache_bytes(model(DELTA), 256, LlamaCpp(n_seq=3)).terms == plain.times(3)
    drafts = LlamaCpp(n_seq=3, draft_copies=2)
    assert cache_bytes(model(DELTA), 256, drafts).terms == plain.times(9)
    one_stream = LlamaCpp(n_seq=3, unified=True)
    assert cache_bytes(model(DELTA), 256, one_stream).terms == plain.times(3)


def test_without_flash_attention_all_values_are_as_wide_as_the_widest():
    wide = SlidingWindow(kv_heads=4, k_dim=16, v_dim=40, window_tokens=128)
    off = LlamaCpp(flash_attn=False, ubatch_tokens=64)
    found = cache_bytes(model(FULL, wide, DELTA, LATENT), 4096, off).terms
    assert found == Terms(
        full_key_bytes=4096 * (2 * 128 + 2 * 576),  # keys, and the latent rows, as they are
        full_value_bytes=4096 * 2 * 160,
        ring_key_bytes=256 * 2 * 64,
        ring_value_bytes=256 * 2 * 160,
        state_bytes=256,
        conv_bytes=288,
    )
    widened = cache_bytes(model(FULL, replace(wide, v_dim=4)), 4096, off).terms
    assert (widened.full_value_bytes, widened.ring_value_bytes) == (4096 * 2 * 64, 256 * 2 * 64)
    on = cache_bytes(model(FULL, wide), 4096, LlamaCpp(ubatch_tokens=64)).terms
    assert (on.full_value_bytes, on.ring_value_bytes) == (4096 * 2 * 64, 256 * 2 * 160)
    assert total(256, LlamaCpp(flash_attn=False, v_type=None), FULL) == 256 * 2 * (128 + 64)
    assert total(256, LlamaCpp(flash_attn=False, v_type="f32"), FULL) == 256 * (256 + 256)


def test_quantised_values_need_flash_attention_and_quantised_keys_do_not():
    off = LlamaCpp(flash_attn=False, k_type="q8_0")
    assert total(256, off, FULL) == 256 * (4 * 34 + 2 * 64)
    with pytest.raises(BadInput, match="q8_0 need flash attention"):
        total(256, LlamaCpp(flash_attn=False, v_type="q8_0"), FULL)
    assert total(256, LlamaCpp(flash_attn=False, v_type="q8_0"), DELTA) == 256 + 288


def test_a_file_without_latent_lengths_has_a_row_per_head():
    assert total(256, LlamaCpp(), LATENT) == 256 * 1152
    assert total(256, LlamaCpp(mla_latent=False), LATENT) == 256 * (768 + 128)


# ---- mlx-lm ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "chunk", "rows"),
    [
        (1, 2048, 256),
        (256, 2048, 256),
        (257, 2048, 512),
        (2048, 2048, 2048),
        (2049, 2048, 2304),
        (256, 128, 256),  # the second chunk fits into the first step
        (257, 128, 512),
        (200, 100, 256),
        (257, 200, 456),  # what was there beyond 200 rows is dropped
        (300, 100, 456),  # 200 rows in use keep 200, and a step of 256 is added
        (500, 100, 656),
        (513, 256, 768),  # 512 end on a step: nothing is dropped
        (300, 300, 512),
        (600, 300, 300 + 512),
    ],
)
def test_a_growing_cache_adds_whole_steps_to_the_rows_in_use(tokens, chunk, rows):
    assert grown_rows(tokens, chunk) == rows
    assert total(tokens, MlxLm(chunk_tokens=chunk), FULL) == 384 * rows


@pytest.mark.parametrize(
    ("tokens", "rows"), [(1, 256), (256, 256), (257, 512), (258, 512), (513, 768)]
)
def test_a_decoded_token_comes_after_the_prompt_and_alone(tokens, rows):
    assert grown_rows(tokens, 2048, decoded=True) == rows


def test_a_prompt_that_fills_its_step_keeps_it_when_the_next_token_comes():
    assert grown_rows(257, 200, decoded=True) == 512
    assert MlxLm(chunk_tokens=200, decoded=True).full_rows(257) == 512
    assert MlxLm(chunk_tokens=200).full_rows(257) == 456


@pytest.mark.parametrize("chunk", [1, 7, 100, 255, 256, 300, 511, 1000])
def test_skipping_whole_patterns_ends_where_single_chunks_do(chunk):
    """The published rule, chunk by chunk."""
    used = rows = 0
    for tokens in range(chunk, 40 * chunk + 1, chunk):
        if used + chunk > rows:
            rows = (used if used % 256 else rows) + -(-chunk // 256) * 256
        used += chunk
        assert grown_rows(tokens, chunk) == rows, tokens


@pytest.mark.parametrize(
    ("tokens", "decoded", "rows"),
    [
        (100, False, 100),
        (500, False, 500),
        (600, False, 600),  # the last 511 would hold 500, and a chunk of 100
        (611, False, 522),  # the last 511 of 600 and a chunk of 11
        (700, False, 611),
        (650, False, 561),
        (601, False, 512),  # one token alone is written into the ring, cut to the window
        (301, False, 512),  # 300 rows grow by the 212 that the window still has
        (101, False, 356),  # 100 rows are full, so a step of 256 is added
        (101, True, 356),
        (102, True, 356),  # 356 rows are not full yet
        (301, True, 512),
        (512, True, 512),
        (701, True, 512),
    ],
)
def test_a_rotating_cache_holds_a_window_less_one_and_the_chunk(tokens, decoded, rows):
    assert rotating_rows(tokens, 512, 100, decoded=decoded) == rows


def test_a_prompt_alone_is_meant_unless_a_step_is_named():
    assert rotating_rows(100, 512, 100) == MlxLm(chunk_tokens=100).ring_rows(100, 512) == 100
    assert MlxLm(chunk_tokens=100, decoded=True).ring_rows(101, 512) == 356


@pytest.mark.parametrize(
    ("tokens", "decoded", "rows"),
    [
        (1, False, 256),
        (256, False, 256),
        (257, False, 512),
        (600, False, 600),
        (601, False, 600),
        (5000, False, 600),
        (257, True, 512),  # 256 rows are full
        (256, True, 256),
    ],
)
def test_token_by_token_a_rotating_cache_grows_in_steps_up_to_its_window(tokens, decoded, rows):
    assert rotating_rows(tokens, 600, 1, decoded=decoded) == rows


def test_a_batch_has_every_row_of_each_sequence():
    """Its caches are `[batch, heads, rows, size]`, growing and rotating ones alike."""
    for layers in ((FULL,), (WINDOW,), (DELTA,), (FULL, WINDOW, DELTA)):
        one = total(1000, MlxLm(chunk_tokens=100), *layers)
        assert total(1000, MlxLm(chunk_tokens=100, n_seq=3), *layers) == 3 * one
    for rules in (MlxLm(), MlxLm(decoded=True)):  # before a prompt there is nothing
        assert rules.full_rows(0) == rules.ring_rows(0, 128) == 0


@pytest.mark.parametrize(
    ("bits", "group", "element_bytes", "key", "value"),
    [
        (8, 64, 2, 128 + 2 * 4, 64 + 4),  # a scale and a bias of 2 bytes for each 64
        (4, 64, 2, 64 + 2 * 4, 32 + 4),
        (8, 32, 2, 128 + 4 * 4, 64 + 2 * 4),
        (8, 64, 4, 128 + 2 * 8, 64 + 8),
        (3, 64, 2, 48 + 2 * 4, 24 + 4),
    ],
)
def test_quantised_rows_carry_a_scale_and_a_bias_for_each_group(
    bits, group, element_bytes, key, value
):
    rules = MlxLm(kv_bits=bits, group_elements=group)
    found = cache_bytes(model(FULL, element_bytes=element_bytes), 256, rules).terms
    assert found == Terms(full_key_bytes=256 * key, full_value_bytes=256 * value)


def test_rotating_caches_are_never_quantised_and_odd_groups_are_refused():
    assert total(256, MlxLm(kv_bits=8), FULL) == 256 * (136 + 68), "groups of 64"
    assert total(100, MlxLm(kv_bits=8), WINDOW) == 384 * 100
    for rules in (MlxLm(kv_bits=7), MlxLm(kv_bits=8, group_elements=48)):
        with pytest.raises(BadInput, match="do not exist"):
            total(100, rules, FULL)


def test_some_families_keep_windows_in_growing_caches_and_latents_per_head():
    assert total(1000, MlxLm(), WINDOW, family="qwen3") == 384 * 1024
    assert total(1000, MlxLm(n_seq=2), WINDOW, family="qwen3") == 2 * 384 * 1024
    assert total(4096, MlxLm(), WINDOW, family="gemma3_text") == 384 * (127 + 2048)
    assert total(256, MlxLm(), LATENT, family="deepseek_v3") == 256 * 1152
    assert total(256, MlxLm(), LATENT, family="deepseek_v2") == 256 * (768 + 128)
    mamba = cache_bytes(model(MAMBA1), 256, MlxLm()).terms
    assert mamba == Terms(state_bytes=160 * 2, conv_bytes=30 * 2)
    assert cache_bytes(model(DELTA), 256, MlxLm()).state_bytes == 64 * 4


# ---- pools -------------------------------------------------------------------------------------


def test_sglang_holds_each_sequence_in_full_or_its_pool():
    for layer in (FULL, WINDOW):
        assert total(1000, Sglang(), layer) == 384 * 1000
        assert total(1000, Sglang(n_seq=3), layer) == 384 * 3000
        assert total(1000, Sglang(n_seq=3, pool_tokens=777), layer) == 384 * 777
        assert total(1000, Sglang(tensor_parallel=2), layer) == 192 * 1000
        assert total(1000, Sglang(tensor_parallel=4), layer) == 192 * 1000
    assert total(10, Sglang(), LATENT) == total(10, Sglang(tensor_parallel=2), LATENT) == 11520
    per_head = Sglang(tensor_parallel=2, mla_latent=False)
    assert total(10, per_head, LATENT) == 10 * (384 + 64)


@pytest.mark.parametrize("rules", [Sglang, Vllm])
def test_a_rank_keeps_its_share_of_every_sequences_state(rules):
    one = cache_bytes(model(DELTA), 16, rules()).terms
    assert one == Terms(state_bytes=256, conv_bytes=144)
    third = cache_bytes(model(DELTA), 16, rules(tensor_parallel=3, n_seq=2)).terms
    assert third == Terms(state_bytes=2 * 22 * 4, conv_bytes=2 * 24 * 2)
    half = cache_bytes(model(DELTA), 16, rules(state_type="bf16")).terms
    assert half == Terms(state_bytes=128, conv_bytes=144)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 16), (16, 16), (17, 32), (1000, 1008)])
def test_vllm_holds_whole_blocks_of_each_sequence(tokens, rows):
    for layer in (FULL, WINDOW):
        assert total(tokens, Vllm(), layer) == 384 * rows
        assert total(tokens, Vllm(n_seq=3), layer) == 3 * 384 * rows
        assert total(tokens, Vllm(n_seq=3, pool_tokens=777), layer) == 384 * 777
        assert total(tokens, Vllm(tensor_parallel=2), layer) == 192 * rows
    assert total(tokens, Vllm(block_tokens=1), FULL) == 384 * tokens
    assert total(16, Vllm(mla_latent=False, tensor_parallel=2), LATENT) == 16 * (384 + 64)


def test_vllm_keeps_some_families_states_in_their_own_type():
    assert cache_bytes(model(DELTA, family="jamba"), 16, Vllm()).state_bytes == 128
    assert cache_bytes(model(DELTA, family="qwen3_5"), 16, Vllm()).state_bytes == 256
    forced = cache_bytes(model(DELTA, family="jamba"), 16, Vllm(state_type="f32"))
    assert forced.state_bytes == 256


ROW = FullAttention(kv_heads=1, k_dim=12, v_dim=4)  # 32 bytes a token: 512 in a block of 16


def delta(value_dim: int) -> GatedDelta:
    """A state of 64 x value_dim bytes, and no tail."""
    return GatedDelta(value_heads=2, key_heads=1, value_dim=value_dim, key_dim=8, conv_kernel=1)


@pytest.mark.parametrize(
    ("layer", "attention", "block"),
    [
        (delta(7), ROW, 16),
        (delta(8), ROW, 16),  # 512 bytes fill the block exactly
        (delta(9), ROW, 32),
        (delta(17), ROW, 48),
        (delta(1), Mla(kv_lora_rank=12, rope_dim=4), 64),
        (delta(32), Mla(kv_lora_rank=12, rope_dim=4), 64),
        (delta(33), Mla(kv_lora_rank=12, rope_dim=4), 128),
    ],
)
def test_a_block_is_stretched_until_a_state_fits(layer, attention, block):
    spec = model(layer, attention)
    pages = Vllm().pages(spec.caches, spec)
    assert (pages.block_tokens, pages.page_bytes) == (block, 32 * block)
    assert Vllm(block_tokens=64).pages(spec.caches, spec).block_tokens == max(64, block)


def test_the_widest_row_and_the_largest_state_decide_for_all():
    narrow = FullAttention(kv_heads=1, k_dim=4, v_dim=4)
    spec = model(delta(3), delta(9), ROW, narrow)
    assert Vllm().pages(spec.caches, spec).block_tokens == 32
    tail = GatedDelta(value_heads=2, key_heads=1, value_dim=8, key_dim=8, conv_kernel=2)
    spec = model(tail, ROW)  # 512 bytes of state and 32 x 2 of tail
    assert Vllm().pages(spec.caches, spec).block_tokens == 32


@pytest.mark.parametrize(
    ("states", "attention", "layers_of_a_page", "groups"),
    [
        (3, 1, 1, (1, 3)),
        (1, 3, 1, (3, 1)),
        (6, 2, 2, (1, 3)),
        (7, 2, 2, (1, 4)),  # the last group is padded
        (5, 4, 4, (1, 2)),  # 5 is not below 4 x 1.25: the long kind is cut
        (9, 8, 9, (1, 1)),  # nearly as many: the short kind is padded
        (8, 9, 9, (1, 1)),
        (4, 4, 4, (1, 1)),
    ],
)
def test_layers_share_pages_in_groups_of_the_fewest_of_a_kind(
    states, attention, layers_of_a_page, groups
):
    spec = model(*[delta(8)] * states, *[ROW] * attention)
    pages = Vllm().pages(spec.caches, spec)
    assert pages.group_layers == layers_of_a_page
    assert (pages.attention_groups, pages.state_groups) == groups
    assert pages.groups == sum(groups)
    assert pages.bytes_each == 512 * layers_of_a_page
    assert pages.printed_tokens(sum(groups) * 10) == 160
    assert pages.printed_tokens(sum(groups) * 10 - 1) == 144
    assert pages.of_sequence(33) == 3 * groups[0] + groups[1]


def test_a_hybrids_pool_is_its_blocks_and_its_states_in_pages():
    spec = model(*[delta(8)] * 3, ROW)  # pages of 512 bytes; keys are three quarters of a row
    held = cache_bytes(spec, 33, Vllm(n_seq=2)).terms  # 3 blocks and 3 states each
    assert held == Terms(full_key_bytes=2304, full_value_bytes=768, state_bytes=3072)
    pool = cache_bytes(spec, 1, Vllm(pool_tokens=33, n_seq=2)).terms  # as many states as blocks
    assert pool == Terms(full_key_bytes=1152, full_value_bytes=384, state_bytes=3 * 3 * 512)
    alone = cache_bytes(model(delta(8), CONV), 33, Vllm(n_seq=2)).terms
    assert alone == Terms(state_bytes=2 * 512, conv_bytes=2 * 400)


def test_only_a_hybrid_has_pages():
    for layers in ((FULL,), (DELTA,)):
        spec = model(*layers)
        with pytest.raises(BadInput, match="no hybrid"):
            Vllm().pages(spec.caches, spec)
