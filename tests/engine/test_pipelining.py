"""Steps issued ahead and parts of a step compiled: the same promise, the same facts."""

from __future__ import annotations

import numpy as np
import pytest

from qwisp.engine.executor import MlxExecutor

from .runs import prompts, run, sized

pytestmark = pytest.mark.mlx

LENGTHS, MAX_NEW = [70, 5, 64], {0: 20, 1: 24, 2: 12}


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("hybrid_moe", "gemma3"))],
)
def test_compiled_and_issued_ahead_equals_compiled_solo(name):
    requests = prompts(LENGTHS, seed=4)
    both = run(name, requests, MAX_NEW, layout=sized([256, 84, 84]), is_compiled=True, ahead=1)
    assert both.executor.context.compiled  # it was traced
    assert both.executor.identity.label.endswith("strict compiled")
    for i in requests:
        alone = run(name, {i: requests[i]}, {i: MAX_NEW[i]}, layout=sized([256]), is_compiled=True)
        assert np.array_equal(both.replies[i].logits, alone.replies[i].logits)
        assert both.replies[i].tokens == alone.replies[i].tokens


def test_a_repeated_round_is_issued_ahead_of_its_results(monkeypatch):
    """Step n + 1 is issued before step n is read, and never more than one ahead."""
    order = []
    issue, read = MlxExecutor._issue, MlxExecutor._read
    monkeypatch.setattr(MlxExecutor, "_issue", lambda *a: (order.append("issue"), issue(*a))[1])
    monkeypatch.setattr(MlxExecutor, "_read", lambda *a: (order.append("read"), read(*a))[1])
    r = run("llama", prompts([5]), {0: 10}, layout=sized([84]), ahead=1)
    assert len(r.replies[0].tokens) == 10
    ahead = np.cumsum([1 if what == "issue" else -1 for what in order])
    assert ahead.max() == 2
    assert ahead[-1] == 0
    order.clear()
    run("llama", prompts([5]), {0: 10}, layout=sized([84]), ahead=0)
    assert order == ["issue", "read"] * 10
