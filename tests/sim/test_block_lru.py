"""The block-weighted hit rate of a least-recently-used cache, as published for Mooncake."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.sim.block_lru import block_lru
from qwisp.trace.read import read_trace
from qwisp.trace.request import Request


def asks(*prefixes: tuple[int, ...]) -> list[Request]:
    return [Request(i, i, 512 * len(keys), 1, None, keys) for i, keys in enumerate(prefixes)]


def test_only_the_longest_cached_prefix_counts() -> None:
    assert block_lru(asks((1, 2, 3), (1, 9, 3))) == 1 / 6
    assert block_lru(asks((1, 2, 3), (9, 2, 3))) == 0


def test_of_one_prompt_the_tail_leaves_first() -> None:
    assert block_lru(asks((1, 2, 3), (1, 2, 3)), 2) == 2 / 6
    assert block_lru(asks((1, 2, 3), (4,), (1, 2, 3)), 3) == 2 / 7


def test_an_empty_trace_and_an_empty_cache_hit_nothing() -> None:
    assert block_lru([]) == 0
    assert block_lru(asks((1,), (1,)), 0) == 0
    with pytest.raises(BadInput, match="-1 blocks"):
        block_lru([], -1)


@pytest.mark.truth
def test_mooncake_conversation_hits_as_published(traces_dir) -> None:
    requests = read_trace(traces_dir / "mooncake_conversation.jsonl").requests
    published = {1000: 4.45, 5000: 11.18, 10_000: 21.16, 30_000: 32.57, 50_000: 35.46, None: 36.64}
    found = {num: 100 * block_lru(requests, num) for num in published}
    assert found == {num: pytest.approx(rate, abs=0.1) for num, rate in published.items()}
