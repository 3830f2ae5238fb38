"""A certificate holds decoded rows of own kernels against their numpy definition, in real runs."""

from __future__ import annotations

import mlx.core as mx
import pytest

from qwisp.engine.executor import MlxExecutor
from qwisp.engine.proof.certificate import DEFINITION, certify
from qwisp.engine.weights.loading import load_decoder

from . import host
from .lane_kernels import HostKernels

pytestmark = pytest.mark.mlx


class OneOff(HostKernels):
    """Differs in the last place of one number, in a ring that has wrapped."""

    def sdpa_rows(self, q, cache, step, window):
        out = super().sdpa_rows(q, cache, step, window)
        if window is None or step.lanes[0].position < 104:  # 40 + 64 rows
            return out
        words = out.view(mx.uint32)
        words[0, 3, 5] = words[0, 3, 5] + 1
        return words.view(mx.float32)


@pytest.mark.parametrize("made", [HostKernels, OneOff])
def test_decoded_rows_of_own_kernels_are_held_against_numpy(made, tmp_path, monkeypatch):
    kernels, honest = made(host.build(tmp_path)), MlxExecutor.__init__

    def with_kernels(self, *args, **kwargs) -> None:
        honest(self, *args, **kwargs)
        self.context.kernels = kernels

    monkeypatch.setattr(MlxExecutor, "__init__", with_kernels)
    found = certify(load_decoder("tiny:gemma3", dtype="bfloat16"), max_new=4, tokens=300, cases=[])
    long, short = (row for row in found.rows if row.case == DEFINITION)
    if made is HostKernels:
        # Every prefilled row, then the first decoded one and those at a block's edge (256, 257).
        assert (long.steps, short.steps) == (2 * (295 + 1), 2 * (256 + 2))
        assert found.holds
    else:
        assert long.operation == "model.layers.0.self_attn.attention at position 295"
        assert (long.ulp, long.layer_kind, long.step) == (1, "sliding window", 0)
