"""The check that `qwisp doctor` runs on a GPU, run here on the host build of the same bodies."""

from __future__ import annotations

import mlx.core as mx
import pytest

from qwisp.engine.proof.kernel_check import check_kernels

from . import host
from .lane_kernels import HostKernels

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return HostKernels(host.build(tmp_path_factory.mktemp("kernels")))


def test_kernels_that_equal_their_definitions_pass(kernels):
    findings = check_kernels(kernels)
    assert len(findings) == 8
    assert all(finding.is_equal for finding in findings)


class OneOff(HostKernels):
    """Differs in the last place of one number."""

    def sdpa_rows(self, q, cache, step, window):
        out = super().sdpa_rows(q, cache, step, window)
        words = out.view(mx.uint32)
        words[4, 3, 5] = words[4, 3, 5] + 1
        return words.view(mx.float32)

    def gated_delta_step(self, inputs, num_live):
        raise RuntimeError("program_source:12: error: unknown type\nmore")


def test_one_last_place_and_a_failed_build_are_found(kernels):
    findings = check_kernels(OneOff(kernels.library))
    assert not any(finding.is_equal for finding in findings)
    details = {finding.kernel: finding.detail for finding in findings}
    assert details["sdpa_rows"] == "other bits in outputs"
    assert details["gated_delta_step"] == "program_source:12: error: unknown type"
