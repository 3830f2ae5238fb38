"""The bundled trace is what its seed says, and shows the moves and pauses it is there to show."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.scheduling.prefix_store import common_tokens
from qwisp.trace.jsonl import line_of
from qwisp.trace.prefix_key import prefix_keys, segment_keys
from qwisp.trace.read import read_trace
from qwisp.trace.request import PREFIX_STEP_TOKENS, Request
from qwisp.trace.synthetic import Lengths, Workload, agents, gaps_s, synthetic_trace

BUNDLED = Path(__file__).parents[2] / "data" / "traces" / "agents.jsonl"
GROW_TOKENS = 8192


@pytest.fixture(scope="module")
def requests() -> tuple[Request, ...]:
    return read_trace(BUNDLED).requests


def test_the_bundled_file_is_what_its_seed_says(requests) -> None:
    assert requests == agents().requests
    assert BUNDLED.read_text() == "".join(f"{line_of(request)}\n" for request in requests)


def test_it_has_fan_outs_with_a_shared_prefix(requests) -> None:
    groups = defaultdict(list)
    for request in requests:
        groups[request.prefix[0], request.arrival_ns // (5 * 10**9)].append(request)
    fan_outs = [group for group in groups.values() if len(group) >= 3]
    assert len(fan_outs) >= 20
    for group in fan_outs:
        first, *others = group
        shared = [
            common_tokens(
                first.prefix, first.prompt_tokens, one.prefix, one.prompt_tokens, PREFIX_STEP_TOKENS
            )
            for one in others
        ]
        assert min(shared) >= 4096 - PREFIX_STEP_TOKENS


def test_it_has_conversations_that_grow(requests) -> None:
    turns = defaultdict(list)
    for request in requests:
        turns[request.prefix[0]].append(request)
    growing = 0
    for one in turns.values():
        for earlier, later in itertools.pairwise(one):
            whole_blocks = earlier.prompt_tokens // PREFIX_STEP_TOKENS
            if later.prefix[:whole_blocks] == earlier.prefix[:whole_blocks]:
                growing += later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
    assert growing >= 50
    assert max(request.prompt_tokens for request in requests) > 40_000


def test_a_good_share_of_replies_is_longer_than_grow(requests) -> None:
    num_long = sum(request.output_tokens > GROW_TOKENS for request in requests)
    assert num_long >= len(requests) // 4
    assert all(request.output_tokens <= request.max_new for request in requests)


def readme_rows() -> list[list[str]]:
    """Return the cells of the README's table of layouts, a list a row."""
    lines = (BUNDLED.parent / "README.md").read_text().splitlines()
    start = lines.index("| layout | moves | pauses | finished | refused |") + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("row", readme_rows(), ids=lambda row: row[0])
def test_it_shows_the_moves_and_pauses_that_stand_beside_it(requests, row: list[str]) -> None:
    from qwisp.cost import load_cost
    from qwisp.memory.session_bytes import SessionBytes
    from qwisp.scheduling.layout import parse_layout
    from qwisp.sim.replay import replay
    from qwisp.spec.catalog import load_model

    text = row[0].split("`")[1]
    is_list = text[0].isdigit()
    size = SessionBytes(load_model("qwen3.6-35b-a3b"))
    memory_bytes = 12 * 2**30
    layout = parse_layout(
        text,
        size=size,
        memory_bytes=memory_bytes,
        model_context_tokens=262_144,
        own_context_tokens=32_768 if is_list else None,
    )
    assert layout.num_bytes(size) <= memory_bytes
    cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
    summary = replay(read_trace(BUNDLED), layout, size, cost).summary
    found = [summary.moves, summary.pauses, summary.finished, summary.refused]
    assert found == [int(cell) for cell in row[1:]], "update data/traces/README.md"
    assert summary.finished + summary.refused == len(requests)
    assert 0.6 < summary.load_ratio < 1.0


def test_the_layout_named_first_has_50_moves_and_5_pauses_or_more() -> None:
    layout, moves, pauses, *_ = readme_rows()[0]
    assert layout.startswith("`65536,32768x3,16384x11`")
    assert int(moves) >= 50
    assert int(pauses) >= 5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["lognormal", "gamma"]))
def test_any_seed_gives_a_trace_that_keeps_the_rules(seed: int, kind: str) -> None:
    reply = Lengths(median=300, spread=0.8, low=5, high=3000, kind=kind)
    work = Workload(num_tasks=6, reply=reply)
    trace = synthetic_trace(work, np.random.default_rng(seed))
    assert trace == synthetic_trace(work, np.random.default_rng(seed))
    arrivals = [request.arrival_ns for request in trace.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    for request in trace.requests:
        assert 1 <= request.output_tokens <= work.max_new
        assert len(request.prefix) == -(-request.prompt_tokens // PREFIX_STEP_TOKENS)
        assert all(0 <= key < 2**63 for key in request.prefix)


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
def test_lengths_lie_around_their_median(kind: str) -> None:
    rng = np.random.default_rng(3)
    lengths = Lengths(median=1000, spread=0.5, low=1, high=10**6, kind=kind)
    drawn = np.array([lengths.draw(rng) for _ in range(4000)])
    # Standard error of the median is about 1.25 x 500 / sqrt(4000) = 10; five of them.
    assert abs(np.median(drawn) - 1000) < 50
    assert abs(drawn.std() / drawn.mean() - 0.5) < 0.06


def test_gaps_have_their_mean_and_burstiness() -> None:
    rng = np.random.default_rng(3)
    for burstiness in (0.5, 1.0, 4.0):
        gaps = gaps_s(40_000, 2.0, rng, burstiness=burstiness)
        assert abs(gaps.mean() - 2.0) < 0.1  # five standard errors of the burstiest
        assert abs(gaps.var() / gaps.mean() ** 2 / burstiness - 1) < 0.15


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 7),
)
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(a, b, step) -> None:
    keys_a, keys_b = prefix_keys(a, step), prefix_keys(b, step)
    for i, (key_a, key_b) in enumerate(zip(keys_a, keys_b, strict=False)):
        assert (key_a == key_b) == (a[: (i + 1) * step] == b[: (i + 1) * step])


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 16))
def test_segments_cut_otherwise_are_other_text_and_equal_ones_share(lengths, step) -> None:
    parts = list(enumerate(lengths))
    keys = segment_keys(parts, step)
    assert len(keys) == -(-sum(lengths) // step)
    longer = segment_keys([*parts, (99, 5)], step)
    whole_blocks = sum(lengths) // step
    assert longer[:whole_blocks] == keys[:whole_blocks]
    changed = segment_keys([(77, lengths[0]), *parts[1:]], step)
    assert not set(changed) & set(keys)
