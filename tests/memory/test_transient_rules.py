"""What a chunk of a prompt writes out while it passes, by hand at the edges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.transient import transient_bytes, widest_chunk
from qwisp.spec.layers import FullAttention, Mla, PooledAttention, SlidingWindow

from .test_serving_rules import PLAIN, UNFUSED, spec


@pytest.mark.parametrize(
    ("head", "fused"), [(32, False), (64, True), (80, True), (96, False), (128, True), (256, False)]
)
def test_heads_of_64_80_and_128_have_a_fused_kernel(head, fused):
    model = spec(FullAttention(kv_heads=1, k_dim=head, v_dim=64))
    # 100 rows of 2 x (512 + 8 x 16) bytes.
    assert transient_bytes(model, 100, 16) == (0 if fused else 100 * 1280)


def test_the_layer_that_keeps_the_most_rows_sets_the_peak():
    full = FullAttention(kv_heads=1, k_dim=256, v_dim=256)
    ring = SlidingWindow(kv_heads=1, k_dim=256, v_dim=256, window_tokens=1000)
    row = 2 * (512 + 8 * 256)
    for layers in ((full, ring), (ring, full)):
        assert transient_bytes(spec(*layers), 5000, 256) == 5000 * row
    assert transient_bytes(spec(ring), 5000, 256) == 1256 * row
    assert transient_bytes(spec(ring), 1255, 256) == 1255 * row
    assert transient_bytes(spec(ring), 5000, 256, dialect=Qwisp(chunk_tokens=64)) == 1064 * row
    assert transient_bytes(spec(ring), 5000, 256, dialect=Fieldfare(chunked=False)) == 5000 * row
    fused = FullAttention(kv_heads=1, k_dim=64, v_dim=64)
    assert transient_bytes(spec(fused, ring), 5000, 256) == 1256 * row


def test_one_token_at_a_time_writes_no_scores_out():
    assert transient_bytes(UNFUSED, 5000, 1) == 0
    assert transient_bytes(UNFUSED, 5000, 2) == 5000 * 2 * (512 + 8 * 2)


@pytest.mark.parametrize("lost", [{"hidden": None}, {"query_heads": None}])
def test_unknown_sizes_matter_only_where_there_is_a_peak(lost):
    assert transient_bytes(replace(UNFUSED, **lost), 5000, 256) is None
    assert widest_chunk(replace(UNFUSED, **lost), 5000, 2**40) is None
    assert transient_bytes(replace(PLAIN, **lost), 5000, 256) == 0


@pytest.mark.parametrize(("tokens", "elements"), [(1000, 1000 * 192), (500, 128 * 1024)])
def test_a_quantised_cache_adds_the_largest_layers_rows_in_half_precision(tokens, elements):
    narrow = FullAttention(kv_heads=2, k_dim=64, v_dim=32)  # 192 elements a row
    wide = SlidingWindow(kv_heads=4, k_dim=128, v_dim=128, window_tokens=100)  # 1,024
    found = transient_bytes(spec(narrow, wide), tokens, 28, is_quantised=True)
    assert found == tokens * 2 * (512 + 8 * 28) + 2 * elements


@pytest.mark.parametrize(
    ("layer", "elements"),
    [
        (Mla(kv_lora_rank=512, rope_dim=64), 576),
        (PooledAttention(row_elements=1152, pooled_elements=128, pool_tokens=4), 1152),
    ],
)
def test_latent_and_pooled_rows_are_never_fused(layer, elements):
    scores = 1000 * 2 * (512 + 8 * 64)
    assert transient_bytes(spec(layer), 1000, 64) == scores
    assert transient_bytes(spec(layer), 1000, 64, is_quantised=True) == scores + 2000 * elements


@pytest.mark.parametrize(
    ("tokens", "free", "chunk"),
    [
        (4096, 4096 * 2 * (512 + 8 * 512), 512),  # just fits
        (4096, 4096 * 2 * (512 + 8 * 512) - 1, 256),
        (4096, 2**40, 4096),
        (4095, 2**40, 2048),  # no chunk is longer than the context
        (64, 2**40, 64),
        (63, 2**40, None),
        (4096, 4096 * 2 * (512 + 8 * 64) - 1, None),
    ],
)
def test_the_widest_chunk_is_the_first_whose_peak_fits(tokens, free, chunk):
    found = widest_chunk(UNFUSED, tokens, free)
    assert (found and found.chunk_tokens) == chunk
    if found:
        assert found.transient_bytes == tokens * 2 * (512 + 8 * chunk)


@pytest.mark.parametrize("chunk", [4096, 2048, 1024, 512, 256, 128, 64])
def test_chunks_are_powers_of_two_down_to_64(chunk):
    peak = 8192 * 2 * (512 + 8 * chunk)
    assert widest_chunk(UNFUSED, 8192, peak).chunk_tokens == chunk
    narrower = widest_chunk(UNFUSED, 8192, peak - 1)
    assert (narrower.chunk_tokens if narrower else 32) == chunk // 2
