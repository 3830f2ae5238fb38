"""The host build of the kernels, called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from qwisp.engine.model.kernels import host_source

FLAGS = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", "-std=c++17"]


def build(folder: Path, *more: str) -> ctypes.CDLL:
    """Compile every kernel for the host, with `more` flags last; skip without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here: the host build of the kernels cannot be made")
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(host_source())
    subprocess.run([compiler, *FLAGS, *more, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]


def sdpa_rows(
    library: ctypes.CDLL,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    base: np.ndarray,
    length: np.ndarray,
    *,
    position: np.ndarray | None = None,
    ring: np.ndarray | None = None,
    window: int = 0,
) -> np.ndarray:
    """Run both dispatches; arguments as in the reference."""
    width, heads, dim = q.shape
    slots = max(1, -(-int(length.max()) // 256))
    sizes = np.array([heads, k.shape[0], k.shape[1], slots, window], np.int32)
    position = (length - 1 if position is None else position).astype(np.int32)
    ring = (np.maximum(length, 1) if ring is None else ring).astype(np.int32)
    base, length = base.astype(np.int64), length.astype(np.int32)
    m, l = np.full((2, width, heads, slots), np.nan, np.float32)  # noqa: E741
    o = np.full((width, heads, slots, dim), np.nan, np.float32)
    out = np.full((width, heads, dim), np.nan, np.float32)
    rows = [np.ascontiguousarray(x, np.float32) for x in (q, k, v)]
    getattr(library, f"sdpa_rows_partials_{dim}")(
        width * heads * slots, *_pointers(*rows, base, length, position, ring, sizes, m, l, o)
    )
    getattr(library, f"sdpa_rows_combine_{dim}")(
        width * heads, *_pointers(m, l, o, length, sizes, out)
    )
    return out


def gated_delta_step(
    library: ctypes.CDLL, *inputs: np.ndarray, live: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Run steps in time; inputs are q, k, v, decay, beta `[W, T, ...]` and state `[W, ...]`."""
    state = inputs[-1]
    width, heads, value, key = state.shape
    arrays = [np.ascontiguousarray(x, np.float32) for x in inputs]
    steps = np.array([inputs[0].shape[1]], np.int32)
    y = np.zeros((width, int(steps[0]), heads, value), np.float32)
    new = state.copy()
    live = live.astype(np.int32)
    library.gated_delta_step(
        width * heads * value, heads, value, key, *_pointers(*arrays, live, steps, y, new)
    )
    return y, new
