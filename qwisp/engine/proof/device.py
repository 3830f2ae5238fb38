"""What MLX runs on here, and whether own kernels keep their definitions on it."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from qwisp.engine.model.own_kernels import OwnKernels, gpu_backend
from qwisp.engine.proof.kernel_check import Finding, check_kernels


class Device(NamedTuple):
    """The device and its backend: `cpu`, `metal` or `cuda`; `works` says that it multiplied."""

    name: str
    backend: str
    mlx_version: str
    works: bool


def this_device() -> Device:
    """Return the default device, tried with one small product."""
    try:
        works = mx.array_equal(mx.eye(8) @ mx.eye(8), mx.eye(8)).item()
    except RuntimeError:
        works = False
    name = str(mx.default_device()).removeprefix("Device").strip("()")
    return Device(name, gpu_backend() or "cpu", mx.__version__, bool(works))


def kernel_findings() -> list[Finding]:
    """Return a finding per own kernel and case on this GPU; none on a CPU, which has none."""
    return check_kernels(OwnKernels()) if gpu_backend() else []
