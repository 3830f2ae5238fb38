"""The MLX engine passes the check; five ways in which attention or width go wrong do not.

Raw logits are compared: such faults move bits long before they move a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine import mixers
from qwisp.engine.arena import Arena, ArenaPlan
from qwisp.engine.attention import BLOCK, KeyRange
from qwisp.engine.clients import Request, Script
from qwisp.engine.decoder import Decoder
from qwisp.engine.decoder_spec import DecoderSpec
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.identity import Identity
from qwisp.engine.mixers import Attention
from qwisp.engine.ops import Ops
from qwisp.engine.random_weights import random_weights
from qwisp.engine.step import Context, Lane, Step
from qwisp.engine.tiny import tiny_config
from qwisp.scheduling.drive import drive
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import Report, RowBytes, ScriptedRequest, check_executor, sessions

pytestmark = pytest.mark.mlx

LAYOUT = sessions(48, 270, *[1408] * 6, margin_rows=8)
SETTINGS = Settings(grow_tokens=16, chunk_tokens=256, budget_tokens=512)
CONFIG = tiny_config("llama") | {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


@cache
def decoder() -> Decoder:
    spec = DecoderSpec.from_config(CONFIG)
    return Decoder(spec, random_weights(spec, 0, "float32"), "float32")


class OrderByRows(Ops):
    """Products that sum in another order from 16 rows on, as some GPU kernels do."""

    def product(self, x: mx.array, w: mx.array) -> mx.array:
        if not 16 <= x.shape[0] < SETTINGS.chunk_tokens:
            return super().product(x, w)
        half = x.shape[1] // 2
        return super().product(x[:, :half], w[:half]) + super().product(x[:, half:], w[half:])


def executor(requests: Sequence[ScriptedRequest], kind: type = MlxExecutor) -> MlxExecutor:
    rows = [context + LAYOUT.margin_rows for context in LAYOUT.contexts]
    arena = Arena(decoder().spec, ArenaPlan.of_sessions(rows, SETTINGS.chunk_tokens), "float32")
    script = Script.of(
        {r.id: Request(prompt=prompt(r)) for r in requests},
        max_new={r.id: r.max_new for r in requests},
        arrivals={r.id: r.arrives for r in requests},
        cancels={r.id: r.cancelled for r in requests if r.cancelled is not None},
    )
    identity = Identity(width=8, chunk_tokens=SETTINGS.chunk_tokens)
    context = Context(OrderByRows(), identity.safeguards)
    return kind(decoder(), arena, identity, script, context=context, keeps_logits=True)


def prompt(request: ScriptedRequest) -> tuple[int, ...]:
    rng = np.random.default_rng(request.id)
    return tuple(rng.integers(0, 256, request.prompt_tokens).tolist())


def evidence(engine: MlxExecutor) -> dict[int, list[tuple[int, str]]]:
    return {
        i: [
            (token, sha256(logits).hexdigest()[:16])
            for token, logits in zip(reply.tokens, reply.logits, strict=True)
        ]
        for i, reply in engine.clients.replies.items()
    }


def tokens(engine: MlxExecutor) -> dict[int, list[int]]:
    return {i: reply.tokens for i, reply in engine.clients.replies.items()}


def check(kind: type = MlxExecutor, replies: Callable = evidence, **words) -> Report:
    return check_executor(
        partial(executor, kind=kind),
        layout=LAYOUT,
        settings=SETTINGS,
        replies=replies,
        **words,
    )


# ---- attention by its definition, and what may go wrong in it ----------------------------------


def attend(
    ops: Ops,
    q: mx.array,
    keys: KeyRange,
    allowed: np.ndarray,
    *,
    num_blocks: int | None = None,
    first: int = 0,
    scores: mx.Dtype = mx.float32,
    rescales: bool = False,
) -> mx.array:
    """Return `[G, M, D]` for queries `[G, M, D]`, one block of 256 keys after the other.

    `allowed` is boolean `[M, keys]`. Anything but the defaults is a fault: sums from block `first`
    on, sums of the halves of `num_blocks`, scores in another type, a running rescale.
    """
    parts = []
    for j in range(num_blocks or -(-allowed.shape[1] // BLOCK)):
        k, v = (x[:, 0] for x in keys.blocks(j, 1))
        seen = np.zeros((allowed.shape[0], BLOCK), bool)
        mine = allowed[:, j * BLOCK : (j + 1) * BLOCK]
        seen[:, : mine.shape[1]] = mine
        s = ops.batched_product(q, k.swapaxes(-1, -2)).astype(scores).astype(mx.float32)
        s = mx.where(mx.array(seen), s, -mx.inf)
        m = mx.max(s, axis=-1, keepdims=True)
        p = mx.exp(s - mx.where(m == -mx.inf, 0.0, m))
        parts.append((m, mx.sum(p, axis=-1, keepdims=True), ops.batched_product(p, v)))
    if rescales:
        top, weight, value = parts[0]
        for m, l, o in parts[1:]:  # noqa: E741  the letters of the formula
            new = mx.maximum(top, m)
            weight = weight * mx.exp(top - new) + l * mx.exp(m - new)
            value = value * mx.exp(top - new) + o * mx.exp(m - new)
            top = new
        return value / weight
    top = parts[0][0]
    for m, _, _ in parts[1:]:
        top = mx.maximum(top, m)
    terms = [(mx.exp(m - top) * o, mx.exp(m - top) * l) for m, l, o in parts]  # noqa: E741
    terms = terms[first % len(terms) :] + terms[: first % len(terms)]
    value, weight = terms[0]
    if num_blocks is not None:
        value, weight = (in_halves([term[n] for term in terms]) for n in (0, 1))
        return value / weight
    for wo, wl in terms[1:]:
        value, weight = value + wo, weight + wl
    return value / weight


def in_halves(terms: list[mx.array]) -> mx.array:
    """Return the sum of both halves: which terms meet first follows from how many there are."""
    middle = len(terms) // 2
    halves = [sum(half[1:], half[0]) for half in (terms[:middle], terms[middle:]) if half]
    return sum(halves[1:], halves[0])


Faults = Callable[[Step, Lane], dict]
DEFINED: Faults = lambda step, lane: {}  # noqa: E731


@contextmanager
def attention(faults: Faults) -> Iterator[None]:
    """Let every attention block decode and prefill by `attend`."""
    steps: list[Step] = []

    def lane(self, c, q, cache, lane):
        keys = cache.keys(lane.place, lane.position + 1)
        allowed = np.ones((1, keys.count), bool)
        groups, dim = keys.k.shape[0], q.shape[-1]
        q = q.astype(mx.float32).reshape(groups, -1, dim)
        return attend(c.ops, q, keys, allowed, **faults(steps[-1], lane)).reshape(-1, dim)

    def prefill(ops, q, keys, num_blocks, allowed):
        groups, dim = keys.k.shape[0], q.shape[-1]
        q = q.astype(mx.float32).reshape(groups, -1, q.shape[1], dim)
        outs = [attend(ops, q[:, h], keys, allowed) for h in range(q.shape[1])]
        return mx.stack(outs, axis=1).reshape(-1, q.shape[2], dim)

    with pytest.MonkeyPatch.context() as patch:
        original = Attention.decode

        def noting(self, c, x, cache, step):
            steps.append(step)
            return original(self, c, x, cache, step)

        patch.setattr(Attention, "decode", noting)
        patch.setattr(Attention, "_lane", lane)
        patch.setattr(mixers, "prefill_window", prefill)
        yield


class SixteenForSix(MlxExecutor):
    """Its decode width becomes 16 once six lanes live."""

    def _issue(self, lanes, before):
        self.identity = replace(self.identity, width=16 if len(lanes) >= 6 else 8)
        return super()._issue(lanes, before)


@cache
def definition(request: ScriptedRequest) -> tuple:
    with attention(DEFINED):
        engine = executor([request._replace(arrives=0)])
        scheduler = Scheduler(RowSpace(LAYOUT, RowBytes()), SETTINGS)
        drive(scheduler, engine)
    return tuple(evidence(engine)[request.id])


def test_the_engine_passes_and_all_but_a_full_cache_was_exercised() -> None:
    report = check(reference=definition).require()
    assert report.word == "identical"
    assert report.not_exercised == ()
    assert report.not_seen == ("Resume", "Pause")
    assert report.exercised.crossed == (1, 2, 5)
    assert set(report.exercised.neighbours) == set(range(8))
    assert report.exercised.longest_moved == 269


IN_COMPANY: dict[str, Faults] = {
    "block order by place": lambda step, lane: {"first": lane.place.slot},
    "blocks of the longest": lambda step, lane: {
        "num_blocks": -(-max(other.position + 1 for other in step.lanes) // BLOCK)
    },
}
EVERYWHERE: dict[str, Faults] = {
    "running rescale": lambda step, lane: {"rescales": True},
    "scores in bfloat16": lambda step, lane: {"scores": mx.bfloat16},
}


@pytest.mark.parametrize("name", IN_COMPANY)
def test_attention_that_looks_at_its_neighbours_is_found_without_a_definition(name: str) -> None:
    with attention(IN_COMPANY[name]):
        report = check()
    assert report.word == "broken"
    assert all(finding.rule == "replies" for finding in report.findings)
    assert "alone it is" in report.findings[0].what


@pytest.mark.parametrize("name", EVERYWHERE)
def test_attention_that_is_wrong_in_all_company_is_found_by_its_definition(name: str) -> None:
    with attention(EVERYWHERE[name]):
        report = check(reference=definition)
    assert report.word == "broken"
    assert all("by definition it is" in finding.what for finding in report.findings)


def test_a_width_that_grows_with_the_lanes_is_found() -> None:
    report = check(SixteenForSix)
    assert report.word == "broken"
    assert "alone it is" in report.findings[0].what


def test_tokens_alone_show_none_of_it_and_the_report_says_less() -> None:
    with attention(IN_COMPANY["block order by place"]):
        report = check(replies=tokens)
    assert report.findings == ()
    assert report.word == "same tokens"
    assert report.not_exercised[0].startswith("logits: ")
