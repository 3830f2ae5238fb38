"""vLLM pages: a block stretched until a state fits, groups that share them, the printed line."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.model import ModelSpec

from .case_models import KIMI_LINEAR, QWEN3_NEXT_80B, QWEN35_27B, QWEN36_35B, spec_of


@pytest.mark.parametrize(
    ("config", "ranks", "block"),
    [
        (QWEN3_NEXT_80B, 1, 544),  # state kept in the model's type
        (QWEN3_NEXT_80B, 4, 272),  # one head of two on each rank
        (QWEN36_35B, 1, 1056),  # state in fp32: twice the block of its predecessor
        (QWEN35_27B, 1, 784),
        (KIMI_LINEAR, 2, 960),  # latent rows come in blocks of 64
    ],
)
def test_block_is_the_least_aligned_one_that_holds_a_state(config, ranks, block):
    spec = spec_of(config)
    assert Vllm(tensor_parallel=ranks).pages(spec.caches, spec).block_tokens == block


def test_pool_of_printed_tokens_has_whole_pages_of_every_group():
    spec = spec_of(QWEN36_35B)
    pages = Vllm().pages(spec.caches, spec)
    assert (pages.group_layers, pages.attention_groups, pages.state_groups) == (10, 1, 3)
    pool = cache_bytes(spec, 1, Vllm(pool_tokens=10 * pages.block_tokens))
    assert pool.total_bytes == 40 * pages.bytes_each
    assert pool.state_bytes == 3 * pool.full_bytes


def test_a_sequence_needs_its_blocks_and_a_page_per_state_group():
    spec = spec_of(QWEN36_35B)
    pages = Vllm().pages(spec.caches, spec)
    assert [pages.of_sequence(n) for n in (1, 1056, 1057)] == [4, 4, 5]
    held = cache_bytes(spec, 1057, Vllm(n_seq=2))
    assert held.total_bytes == 2 * pages.of_sequence(1057) * pages.bytes_each


def test_pages_are_for_hybrids_only():
    spec = ModelSpec.from_config(
        {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    )
    with pytest.raises(BadInput, match="no hybrid"):
        Vllm().pages(spec.caches, spec)
    with pytest.raises(BadInput, match="do not divide over 3"):
        cache_bytes(spec, 16, Vllm(tensor_parallel=3))
