"""The MLX engine passes the check; an engine with one of five faults does not.

Raw logits are compared: such faults move bits long before they move a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.build import open_engine
from qwisp.engine.cache.buffers import BLOCK, KeyRange
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model import mixers
from qwisp.engine.model.mixers import Attention
from qwisp.engine.model.ops import Ops
from qwisp.engine.proof.hostile import HostileOps
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import tiny_config
from qwisp.engine.weights.loaded import LoadedModel, made_model
from qwisp.engine.weights.random_weights import random_weights
from qwisp.scheduling.drive import drive
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import Report, RowBytes, ScriptedRequest, check_executor, sessions
from qwisp.testing.script import company, default_requests
from tests.engine.doubles import DOUBLES

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
def model() -> LoadedModel:
    spec = read_decoder(CONFIG)
    return made_model("small", CONFIG, spec, random_weights(spec, 0, "float32"), "float32")


class UnkindOps(HostileOps):
    """Kernels as a GPU has them: sums by the number of matrices, and otherwise from 16 rows on."""

    def __init__(self) -> None:
        super().__init__(["batched"])

    def product(self, x: mx.array, w: mx.array) -> mx.array:
        if not 16 <= x.shape[0] < SETTINGS.chunk_tokens:
            return super().product(x, w)
        half = x.shape[1] // 2
        return super().product(x[:, :half], w[:half]) + super().product(x[:, half:], w[half:])


def executor(requests: Sequence[ScriptedRequest], ops: type[Ops] = Ops) -> MlxExecutor:
    script = ScriptedClients.of(
        {r.id: TokenRequest(prompt=prompt(r)) for r in requests},
        max_new={r.id: r.max_new for r in requests},
        arrivals={r.id: r.arrives for r in requests},
        cancels={r.id: r.cancelled for r in requests if r.cancelled is not None},
    )
    engine = open_engine(
        model(),
        LAYOUT,
        script,
        SETTINGS,
        ops=ops(),
        ahead=0,
        keeps_logits=True,
        is_compiled=False,
        has_kernels=False,
    )
    return engine.executor


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


def check(ops: type[Ops] = Ops, replies: Callable = evidence, **words) -> Report:
    return check_executor(
        partial(executor, ops=ops), layout=LAYOUT, settings=SETTINGS, replies=replies, **words
    )


# ---- the definition ---------------------------------------------------------------------------


def attend(ops: Ops, q: mx.array, keys: KeyRange, allowed: np.ndarray) -> mx.array:
    """Return `[G, M, D]` for queries `[G, M, D]`, one block of 256 keys after the other.

    `allowed` is boolean `[M, keys]`. Written from the definition, without the engine's own blocks.
    """
    parts = []
    for start in range(0, allowed.shape[1], BLOCK):
        rows = slice(keys.base + start, keys.base + min(start + BLOCK, keys.count))
        k, v = (x[:, rows].astype(mx.float32) for x in (keys.k, keys.v))
        missing = BLOCK - k.shape[1]
        k, v = (mx.pad(x, [(0, 0), (0, missing), (0, 0)]) for x in (k, v))
        seen = allowed[:, start : start + BLOCK]
        seen = np.pad(seen, [(0, 0), (0, BLOCK - seen.shape[1])])
        s = mx.where(mx.array(seen), ops.batched_product(q, k.swapaxes(-1, -2)), -mx.inf)
        m = mx.max(s, axis=-1, keepdims=True)
        p = mx.exp(s - mx.where(m == -mx.inf, 0.0, m))
        parts.append((m, mx.sum(p, axis=-1, keepdims=True), ops.batched_product(p, v)))
    top = parts[0][0]
    for m, _, _ in parts[1:]:
        top = mx.maximum(top, m)
    m, weight, value = parts[0]
    weight, value = mx.exp(m - top) * weight, mx.exp(m - top) * value
    for m, l, o in parts[1:]:  # noqa: E741  the letters of the formula
        weight, value = weight + mx.exp(m - top) * l, value + mx.exp(m - top) * o
    return value / weight


def defined_lane(self, c, q, cache, lane) -> mx.array:
    keys = cache.keys(lane.place, lane.position + 1)
    q = q.astype(mx.float32).reshape(keys.k.shape[0], -1, q.shape[-1])
    return attend(c.ops, q, keys, np.ones((1, keys.count), bool)).reshape(-1, q.shape[-1])


def defined_window(ops, q, keys, num_blocks, allowed) -> mx.array:
    q = q.astype(mx.float32).reshape(keys.k.shape[0], -1, *q.shape[1:])
    outs = [attend(ops, q[:, h], keys, allowed) for h in range(q.shape[1])]
    return mx.stack(outs, axis=1).reshape(-1, *q.shape[2:])


@cache
def definition(request: ScriptedRequest) -> tuple:
    """Return a reply computed alone, by `attend`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attention, "_lane", defined_lane)
        patch.setattr(mixers, "prefill_window", defined_window)
        engine = executor([request._replace(arrives=0)])
        drive(Scheduler(RowSpace(LAYOUT, RowBytes()), SETTINGS), engine)
    return tuple(evidence(engine)[request.id])


@pytest.fixture(scope="module")
def defined() -> Callable:
    """Every reply by definition, found before an engine is broken."""
    streams = {r.id: r for run in company(LAYOUT, SETTINGS, BLOCK).runs for r in run}
    for request in [*default_requests(LAYOUT, SETTINGS), *streams.values()]:
        definition(request)
    return definition


# ---- what is found ----------------------------------------------------------------------------


def test_the_engine_passes_and_all_but_a_full_cache_was_exercised(defined: Callable) -> None:
    report = check(reference=defined).require()
    assert report.word == "identical"
    assert report.not_exercised == ()
    assert report.not_seen == ("Resume", "Pause")
    assert report.exercised.crossed == (1, 2, 5)
    assert set(report.exercised.neighbours) == set(range(8))
    assert report.exercised.longest_moved == 269


def test_the_engine_passes_on_unkind_kernels() -> None:
    assert check(UnkindOps).require().word == "identical"


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("block order by place", Ops),
        ("blocks padded to the longest", UnkindOps),
        ("wider from six lanes", UnkindOps),
    ],
)
def test_what_follows_from_company_is_found_without_a_definition(name: str, ops: type[Ops]) -> None:
    with DOUBLES[name]():
        report = check(ops)
    assert report.word == "broken"
    assert all(finding.rule == "replies" for finding in report.findings)
    assert "alone it is" in report.findings[0].what


@pytest.mark.parametrize("name", ["running rescale", "bf16 scores"])
def test_what_is_wrong_in_all_company_is_found_by_its_definition(
    name: str, defined: Callable
) -> None:
    with DOUBLES[name]():
        report = check(reference=defined)
    assert report.word == "broken"
    assert all("by definition it is" in finding.what for finding in report.findings)


def test_tokens_alone_show_nothing_and_the_report_says_less() -> None:
    with DOUBLES["block order by place"]():
        report = check(replies=tokens)
    assert report.findings == ()
    assert report.word == "same tokens"
    assert report.not_exercised[0].startswith("logits: ")
