"""The device MLX runs on, and own kernels held there against their numpy definitions, by bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import Rows
from qwisp.engine.model.kernels import kernel_text
from qwisp.engine.model.own_kernels import OwnKernels, gpu_backend
from qwisp.engine.model.step import Lane, Step
from qwisp.scheduling.contract import Place
from qwisp.spec.layers import FullAttention

WIDTH = 8
STEPS = 3
LENGTHS = (1, 255, 256, 257, 700)
HEADS, GROUPS, ROWS = 4, 2, 800


class Kernels(Protocol):
    """What the engine calls; see `own_kernels`."""

    def sdpa_rows(self, q: mx.array, cache: Rows, step: Step, window: int | None) -> mx.array:
        """Return `[W, H, D]`."""

    def gated_delta_step(
        self, inputs: Sequence[mx.array], num_live: int
    ) -> tuple[mx.array, mx.array]:
        """Return outputs `[W, T, ...]` and the state after T tokens."""


class KernelFinding(NamedTuple):
    """One kernel in one case: equal to its definition, or what was wrong."""

    kernel: str
    case: str
    is_equal: bool
    detail: str = ""


def check_kernels(kernels: Kernels, seed: int = 0) -> list[KernelFinding]:
    """Return a finding for each kernel, head size and type; a kernel that fails to build is one.

    Lanes of 1 to 700 rows lie side by side, so that part blocks and full ones meet.
    """
    rng = np.random.default_rng(seed)
    findings = []
    for dim in (64, 128, 256):
        for dtype in (mx.float32, mx.bfloat16):
            case = f"head size {dim}, {str(dtype).removeprefix('mlx.core.')}"
            cases = lambda d=dim, t=dtype: _attention(kernels, rng, d, t)  # noqa: E731
            findings.append(_tried("sdpa_rows", case, cases))
    for dim in (64, 128):
        cases = lambda d=dim: _delta(kernels, rng, d)  # noqa: E731
        findings.append(_tried("gated_delta_step", f"key size {dim}", cases))
    return findings


def _tried(kernel: str, case: str, pairs: Any) -> KernelFinding:
    try:
        differing = [name for name, ours, theirs in pairs() if not np.array_equal(ours, theirs)]
    except (RuntimeError, ValueError) as error:  # a compiler's message, first line
        return KernelFinding(kernel, case, False, str(error).strip().partition("\n")[0][:120])
    if differing:
        return KernelFinding(kernel, case, False, f"other bits in {', '.join(differing)}")
    return KernelFinding(kernel, case, True)


def _attention(
    kernels: Kernels, rng: np.random.Generator, dim: int, dtype: mx.Dtype
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    cache = Rows(FullAttention(kv_heads=GROUPS, k_dim=dim, v_dim=dim), ROWS * len(LENGTHS), dtype)
    shape = cache.k.shape
    cache.k, cache.v = (
        mx.array(rng.normal(0, 1, shape).astype(np.float32)).astype(dtype) for _ in "kv"
    )
    q = rng.normal(0, dim**-0.5, (WIDTH, HEADS, dim)).astype(np.float32)
    places = [Place(n, n * ROWS, ROWS, ROWS) for n in range(len(LENGTHS))]
    lanes = tuple(Lane(place, n - 1) for place, n in zip(places, LENGTHS, strict=True))
    ours = kernels.sdpa_rows(mx.array(q), cache, Step(lanes, WIDTH), None)
    k, v = (np.array(x.astype(mx.float32)) for x in (cache.k, cache.v))
    base = np.array([place.start_row for place in places])
    stated = definition("sdpa_rows/reference.py")
    live = len(LENGTHS)
    theirs = stated.sdpa_rows(q[:live], k, v, base, np.array(LENGTHS))
    yield "outputs", np.array(ours)[:live], theirs


def _delta(
    kernels: Kernels, rng: np.random.Generator, dim: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    shapes = ((WIDTH, STEPS, HEADS, dim),) * 3 + ((WIDTH, STEPS, HEADS),) * 2
    inputs = [rng.uniform(-0.2, 0.2, shape).astype(np.float32) for shape in shapes]
    start = rng.uniform(-1, 1, (WIDTH, HEADS, dim, dim)).astype(np.float32)
    y, state = kernels.gated_delta_step([mx.array(x) for x in (*inputs, start)], WIDTH)
    stated = definition("gated_delta_step/reference.py")
    for t in range(STEPS):
        expected, start = stated.gated_delta_step(*(x[:, t] for x in inputs), start)
        yield f"outputs of token {t}", np.array(y)[:, t], expected
    yield "state", np.array(state), start


def definition(name: str) -> SimpleNamespace:
    """Return the definitions of a reference file under `kernels`: text that ships beside them."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(kernel_text(name), name, "exec"), namespace)
    return SimpleNamespace(**_public(namespace))


def _public(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in namespace.items() if not key.startswith("__")}


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


def kernel_findings() -> list[KernelFinding]:
    """Return a finding per own kernel and case on this GPU; none on a CPU, which has none."""
    return check_kernels(OwnKernels()) if gpu_backend() else []
