"""The numpy definitions of the kernels: against fp64, and against the engine's MLX path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.cache.buffers import KeyRange
from qwisp.engine.model.attention import decode_lane
from qwisp.engine.model.gated_delta import delta_step
from qwisp.engine.model.ops import Ops

pytestmark = pytest.mark.mlx

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
f32 = np.float32


def reference(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ref_{name}", KERNELS / name / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SDPA, DELTA = reference("sdpa_rows"), reference("gated_delta_step")


def exact_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    s = k.astype(np.float64) @ q.astype(np.float64)
    p = np.exp(s - s.max())
    return p @ v.astype(np.float64) / p.sum()


def test_exp_is_within_two_ulp_of_the_true_value():
    x = np.concatenate([-np.logspace(-6, np.log10(86.9), 20_000), [0.0]]).astype(f32)
    got, true = SDPA.exp(x), np.exp(x.astype(np.float64))
    assert np.abs(got - true).max() <= 2 * np.spacing(true.astype(f32)).max()
    assert (np.abs(got - true) / true).max() < 2.5e-7  # two units of 2^-23 with a little to spare
    assert SDPA.exp(np.array([-np.inf, -88.0], f32)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("lengths", [(1, 255, 256, 257), (600, 3, 512, 1024)])
def test_sdpa_rows_is_attention_over_each_row_of_its_own(lengths):
    rng = np.random.default_rng(0)
    heads, groups, dim = 4, 2, 32
    rows = sum(lengths)
    k, v = rng.normal(0, 1, (2, groups, rows, dim)).astype(f32)
    q = rng.normal(0, dim**-0.5, (len(lengths) + 1, heads, dim)).astype(f32)  # scaled, as it comes
    base = np.array([*np.cumsum([0, *lengths[:-1]]), 0])
    length = np.array([*lengths, 0])
    out = SDPA.sdpa_rows(q, k, v, base, length)
    assert (out[-1] == 0).all()  # idle
    for w, n in enumerate(lengths):
        keys = KeyRange(mx.array(k), mx.array(v), int(base[w]), n)
        mine = np.array(decode_lane(Ops(), mx.array(q[w]), keys, None))
        for h in range(heads):
            own = slice(base[w], base[w] + n)
            true = exact_attention(q[w, h], k[h // 2, own], v[h // 2, own])
            # fp32 sums of up to 1,024 terms: some 1e-6 relative to values of size 1
            assert np.abs(out[w, h] - true).max() < 3e-6
            assert np.abs(mine[h] - true).max() < 3e-6


def test_sdpa_rows_reads_nothing_outside_its_range_or_its_window():
    rng = np.random.default_rng(1)
    k, v = rng.normal(0, 1, (2, 1, 700, 32)).astype(f32)
    q = rng.normal(0, 1, (1, 2, 32)).astype(f32)
    allowed = np.ones((1, 300), bool)
    allowed[0, 40:60] = False
    base, length = np.array([200]), np.array([300])
    clean = SDPA.sdpa_rows(q, k, v, base, length, allowed)
    for x in (k, v):
        x[:, :200] = x[:, 500:] = np.nan
    assert np.array_equal(SDPA.sdpa_rows(q, k, v, base, length, allowed), clean)


def test_gated_delta_step_follows_the_rule():
    rng = np.random.default_rng(2)
    width, heads, value, key = 3, 4, 32, 64
    q, k = rng.normal(0, 0.1, (2, width, heads, key)).astype(f32)
    v = rng.normal(0, 1, (width, heads, value)).astype(f32)
    decay, beta = rng.uniform(0.5, 1, (2, width, heads)).astype(f32)
    state = rng.normal(0, 1, (width, heads, value, key)).astype(f32)
    y, new = DELTA.gated_delta_step(q, k, v, decay, beta, state)
    wide = [x.astype(np.float64) for x in (q, k, v, decay, beta, state)]
    s = wide[5] * wide[3][..., None, None]
    d = (wide[2] - np.einsum("whvk,whk->whv", s, wide[1])) * wide[4][..., None]
    s = s + d[..., None] * wide[1][..., None, :]
    assert np.abs(new - s).max() < 2e-6
    assert np.abs(y - np.einsum("whvk,whk->whv", s, wide[0])).max() < 2e-6
    mine, state_of_mlx = delta_step(*(mx.array(x) for x in (q, k, v, decay, beta, state)))
    assert np.abs(np.array(mine) - y).max() < 2e-6
    assert np.abs(np.array(state_of_mlx) - new).max() < 2e-6
