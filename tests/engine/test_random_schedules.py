"""Random arrivals, cancels, budgets, layouts and failures: survivors keep every bit of solo."""

from __future__ import annotations

import numpy as np
import pytest

from qwisp.engine.clients import TokenRequest
from qwisp.engine.sampling import Sampling
from qwisp.scheduling.contract import End, Executor, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty

from .runs import CHUNK, replayed, run, sized
from .test_batched_equals_solo import make_ops

pytestmark = pytest.mark.mlx

NUM_REQUESTS = 9
MODELS = ("hybrid", "gemma3", "hybrid_moe", "llama", "qwen3_moe")


def random_request(rng: np.random.Generator) -> TokenRequest:
    prompt = tuple(rng.integers(0, 256, int(rng.integers(1, 150))).tolist())
    temperature = float(rng.choice([0.0, 0.7]))
    stops = frozenset(rng.integers(0, 256, int(rng.choice([0, 4]))).tolist())
    sampling = Sampling(temperature=temperature, seed=int(rng.integers(1000)))
    return TokenRequest(prompt=prompt, sampling=sampling, stop_tokens=stops)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 60))]
)
def test_survivors_of_a_random_schedule_equal_solo(seed):
    rng = np.random.default_rng(seed)
    name = MODELS[seed % len(MODELS)]
    requests = {i: random_request(rng) for i in range(NUM_REQUESTS)}
    max_new = {i: int(rng.integers(1, 80)) for i in requests}
    arrivals = {i: int(rng.integers(0, 80)) for i in requests}
    cancels = {i: arrivals[i] + int(rng.integers(0, 60)) for i in rng.choice(NUM_REQUESTS, 2)}
    contexts = [256, *rng.choice([84, 120, 160, 256], int(rng.integers(1, 7))).tolist()]
    settings = Settings(
        grow_tokens=int(rng.integers(1, 40)),
        chunk_tokens=CHUNK,
        budget_tokens=int(rng.choice([0, 64, 128, 300])),
        order=str(rng.choice(["fcfs", "first_fit", "sjf"])),
    )
    chance = np.random.default_rng(seed + 1)

    def wrap(inner: Executor) -> Executor:
        def fails(round: Round) -> list[int]:
            # An end that fails is only told late: nothing is left of its stream to compare.
            able = [n for n, op in enumerate(round.ops) if not isinstance(op, End)]
            able += range(len(round.ops), len(round.ops) + len(round.decode))
            return [n for n in able if chance.random() < 0.004]

        return Faulty(inner, fails)

    r = run(
        name,
        requests,
        max_new,
        layout=sized(contexts),
        arrivals=arrivals,
        cancels=cancels,
        settings=settings,
        ops=make_ops("all"),
        wrap=wrap,
        ahead=int(rng.integers(2)),
        poisons=bool(rng.integers(2)),
    )
    counts = r.scheduler.counts
    assert counts["submitted"] == NUM_REQUESTS
    assert sum(counts.values()) == 2 * NUM_REQUESTS
    for i, reply in r.replies.items():
        assert reply.end is not None
        alone = run(
            name, {i: requests[i]}, {i: max_new[i]}, layout=sized([256]), ops=make_ops("all")
        )
        solo = alone.replies[i]
        assert np.array_equal(reply.logits, solo.logits[: len(reply.logits)])
        assert reply.tokens == solo.tokens[: len(reply.tokens)]
        if reply.end.outcome == "finished":
            assert reply.tokens == solo.tokens
    assert replayed(r) == r.scheduler.log
