"""Logits of every step and tokens are the same alone and in company, bit for bit.

The real scheduler drives the engine over a covering array of model, type, kernels, lanes, layout,
sampling, pipelining and NaN in everything nobody may read. Raw words are compared, never tokens
alone: a changed order of summation moves bits long before it moves a token.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pytest

from qwisp.engine.clients import TokenRequest
from qwisp.engine.model.ops import Ops
from qwisp.engine.proof.hostile import SHIMS, HostileOps
from qwisp.engine.sampling import Sampling
from qwisp.engine.spec.decoder_spec import DenseFfn
from qwisp.engine.spec.tiny import MORE_TINY, TINY
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Move, Pause, Resume
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings

from .pairwise import covering_array, covers
from .runs import CHUNK, Ran, model_of, replayed, run, sized

pytestmark = pytest.mark.mlx

FACTORS = {
    "model": tuple(TINY),
    "dtype": ("float32", "bfloat16"),
    "kernels": ("kind", "products", "attention blocks", "experts", "sorting", "all"),
    "lanes": (1, 2, 3, 4, 5, 6, 7, 8),
    "layout": ("roomy", "growing", "tight", "free"),
    "draws": ("greedy", "seeded"),
    "ahead": (0, 1),
    "poisons": (False, True),
}
CASES = covering_array(FACTORS)
BLOCK_SHIMS = {"batched", "blocks", "sums"}
LENGTHS = (70, 5, 63, 33, 129, 1, 64, 20)
MAX_NEW = (40, 75, 45, 50, 12, 90, 45, 70)


def make_ops(kernels: str) -> Ops:
    if kernels == "kind":
        return Ops()
    some = {"all": SHIMS, "attention blocks": BLOCK_SHIMS}.get(kernels, [kernels])
    return HostileOps(some, long_keys=128)


@lru_cache
def request(i: int, draws: str) -> TokenRequest:
    rng = np.random.default_rng(100 + i)
    rule = Sampling(temperature=0.8 if draws == "seeded" else 0.0, seed=7 + i)
    return TokenRequest(prompt=tuple(rng.integers(0, 256, LENGTHS[i]).tolist()), sampling=rule)


@cache
def solo(i: int, model: str, dtype: str, kernels: str, draws: str) -> tuple[list[int], np.ndarray]:
    """Return tokens and raw logits of a request that is alone in a session of its own."""
    r = run(
        model,
        {i: request(i, draws)},
        {i: MAX_NEW[i]},
        layout=sized([256]),
        dtype=dtype,
        ops=make_ops(kernels),
        settings=Settings(chunk_tokens=CHUNK, budget_tokens=0),
    )
    return r.replies[i].tokens, np.stack(r.replies[i].logits)


def layout_of(name: str, lanes: int, model: str, dtype: str) -> Layout:
    if name == "roomy":
        return sized([256] * lanes)
    if name == "growing":
        return sized([84, 104, 128, 256, 84, 160, 256, 84][: max(4, lanes)])  # never more than W
    if name == "tight":
        return sized([256] + [84] * max(1, lanes - 1))
    size = SessionBytes(model_of(model, dtype).spec, None, CHUNK)
    budget = size.bytes(700) + (lanes - 1) * size.lane_bytes(300)  # 700 rows beside all lanes
    return Layout.free(budget, 300, lanes=lanes)


def run_case(case: dict, seed: int) -> tuple[Ran, HostileOps | Ops]:
    rng = np.random.default_rng(seed)
    ids = range(case["lanes"])
    layout = layout_of(case["layout"], case["lanes"], case["model"], case["dtype"])
    settings = Settings(
        grow_tokens=12, chunk_tokens=CHUNK, budget_tokens=int(rng.choice([0, 64, 100, 200]))
    )
    ops = make_ops(case["kernels"])
    r = run(
        case["model"],
        {i: request(i, case["draws"]) for i in ids},
        {i: MAX_NEW[i] for i in ids},
        layout=layout,
        dtype=case["dtype"],
        arrivals={i: int(rng.integers(0, 20)) for i in ids},
        cancels={0: 40} if case["lanes"] > 3 else None,
        settings=settings,
        ops=ops,
        ahead=case["ahead"],
        poisons=case["poisons"],
    )
    return r, ops


def test_the_array_covers_all_pairs():
    assert covers(CASES, FACTORS)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_company_changes_no_bit(n):
    check(CASES[n], n)


def check(case: dict, seed: int) -> None:
    """Assert that every reply of a case has its solo bits, and that the facts replay equal."""
    r, ops = run_case(case, seed)
    for i, reply in r.replies.items():
        tokens, logits = solo(i, case["model"], case["dtype"], case["kernels"], case["draws"])
        got = np.stack(reply.logits) if reply.logits else logits[:0]
        assert np.array_equal(got, logits[: len(got)]), f"request {i} of {case}"
        assert reply.tokens == tokens[: len(reply.tokens)]
        assert reply.end is not None
        if reply.end.outcome == "finished":
            assert reply.tokens == tokens
    if isinstance(ops, HostileOps):
        used = {shim for shim, count in ops.altered.items() if count}
        blocks = model_of(case["model"]).decoder.spec.blocks
        has_experts = not all(isinstance(block.ffn, DenseFfn) for block in blocks)
        expected = {"products", *BLOCK_SHIMS} | ({"experts", "sorting"} if has_experts else set())
        assert used == expected & ops.shims
    assert replayed(r) == r.scheduler.log


def test_layouts_do_what_they_are_for():
    base = {"model": "hybrid", "dtype": "float32", "kernels": "kind", "draws": "greedy"}
    kinds = {}
    for name in FACTORS["layout"]:
        case = base | {"lanes": 8, "layout": name, "ahead": 0, "poisons": False}
        ops = [op for round in run_case(case, 1)[0].rounds for op in round.ops]
        kinds[name] = {kind for kind in (Move, Pause, Resume) if any(type(o) is kind for o in ops)}
    assert kinds["roomy"] == set()
    assert Move in kinds["growing"]
    assert kinds["tight"] >= {Pause, Resume}


@pytest.mark.parametrize("model", ["gemma3", "hybrid_moe"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_stream_that_moved_three_times_is_the_stream_it_was(model, ahead):
    asked = {0: request(2, "greedy"), 1: request(4, "seeded")}
    new = {0: 90, 1: 40}

    def go(ids: list[int], contexts: list[int]) -> Ran:
        return run(
            model,
            {i: asked[i] for i in ids},
            {i: new[i] for i in ids},
            layout=sized(contexts),
            settings=Settings(grow_tokens=8, chunk_tokens=CHUNK, budget_tokens=64),
            ops=make_ops("all"),
            ahead=ahead,
            poisons=True,
        )

    moved = go([0, 1], [84, 104, 128, 256, 256])
    ops = [op for round in moved.rounds for op in round.ops]
    assert sum(isinstance(op, Move) and op.id == 0 for op in ops) == 3
    for i in asked:
        alone = go([i], [256])
        assert np.array_equal(moved.replies[i].logits, alone.replies[i].logits)


LONG = (1270, 5, 513, 255, 640, 1, 257, 64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FACTORS["dtype"])
@pytest.mark.parametrize("model", [*TINY, *MORE_TINY])
def test_streams_of_1300_tokens_keep_their_bits_in_company(model, dtype):
    """Six blocks, three, two and less side by side; the longest two outgrow their sessions."""
    rng = np.random.default_rng(8)
    asked = {
        i: TokenRequest(prompt=tuple(rng.integers(0, 256, n).tolist())) for i, n in enumerate(LONG)
    }

    def go(ids: list[int], contexts: list[int]) -> Ran:
        return run(
            model,
            {i: asked[i] for i in ids},
            dict.fromkeys(ids, 30),
            layout=sized(contexts),
            dtype=dtype,
            settings=Settings(grow_tokens=8, chunk_tokens=CHUNK, budget_tokens=512),
            ops=make_ops("all"),
            poisons=True,
        )

    together = go(list(asked), [1280, 84, 544, 288, 656, 1312, 704, 96])
    ops = [op for round in together.rounds for op in round.ops]
    assert {op.id for op in ops if isinstance(op, Move | Resume)} >= {0, 4}
    for i in asked:
        alone = go([i], [1312])
        assert np.array_equal(together.replies[i].logits, alone.replies[i].logits), i
