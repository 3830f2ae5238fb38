"""The engine over its own kernels (their host build): the same promise, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from qwisp.engine.executor import MlxExecutor
from qwisp.engine.proof.hostile import HostileOps

from ..runs import prompts, run, sized
from . import host
from .lane_kernels import HostKernels

pytestmark = pytest.mark.mlx

LENGTHS, MAX_NEW = [70, 5, 64, 129], {0: 20, 1: 60, 2: 24, 3: 12}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["hybrid_moe", "gemma3"])
def test_lanes_on_own_kernels_equal_solo_bit_for_bit(name, dtype, tmp_path, monkeypatch):
    kernels = HostKernels(host.build(tmp_path))
    honest = MlxExecutor.__init__

    def with_kernels(self, *args, **kwargs) -> None:
        honest(self, *args, **kwargs)
        self.context.kernels = kernels

    requests = prompts(LENGTHS, seed=8)
    plain = run(name, requests, MAX_NEW, layout=sized([256, 84, 84, 256]), dtype=dtype)
    monkeypatch.setattr(MlxExecutor, "__init__", with_kernels)

    def go(ids: list[int], contexts: list[int]):
        return run(
            name,
            {i: requests[i] for i in ids},
            {i: MAX_NEW[i] for i in ids},
            layout=sized(contexts),
            dtype=dtype,
            ops=HostileOps(),
            poisons=True,
        )

    together = go(list(requests), [256, 84, 84, 256])
    for i in requests:
        alone = go([i], [256])
        assert np.array_equal(together.replies[i].logits, alone.replies[i].logits)
        assert len(plain.replies[i].tokens) == len(together.replies[i].tokens)
    assert kernels.calls > 0
    if name == "hybrid_moe":
        assert kernels.longest_walk == 64  # a whole window walked in one call
