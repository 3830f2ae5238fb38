"""The host build of each kernel's one body equals its numpy definition, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from . import host
from .test_references import DELTA, SDPA

pytestmark = pytest.mark.mlx
f32 = np.float32


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return host.build(tmp_path_factory.mktemp("kernels"))


def rows(rng: np.random.Generator, groups: int, count: int, dim: int) -> np.ndarray:
    return rng.normal(0, 1, (groups, count, dim)).astype(f32)


@pytest.mark.parametrize(
    ("heads", "groups", "dim"), [(4, 2, 32), (2, 2, 64), (3, 1, 128), (2, 1, 256)]
)
def test_sdpa_rows_equals_its_definition(library, heads, groups, dim):
    rng = np.random.default_rng(dim)
    length = np.array([1, 300, 256, 0, 513])
    base = np.array([7, 10, 400, 0, 700])
    k, v = rows(rng, groups, 1300, dim), rows(rng, groups, 1300, dim)
    q = rng.normal(0, dim**-0.5, (5, heads, dim)).astype(f32)
    got = host.sdpa_rows(library, q, k, v, base, length)
    assert np.array_equal(got, SDPA.sdpa_rows(q, k, v, base, length))


def test_scores_of_any_size_are_the_same_bits(library):
    """Large scores reach the ends of the exponential: zeros, and blocks that weigh nothing."""
    rng = np.random.default_rng(3)
    k, v = rows(rng, 1, 600, 64), rows(rng, 1, 600, 64)
    for size in (0.0, 1e-20, 3.0, 60.0, 1e4):
        q = (rng.normal(0, 1, (1, 2, 64)) * size).astype(f32)
        got = host.sdpa_rows(library, q, k, v, np.array([0]), np.array([600]))
        assert np.array_equal(got, SDPA.sdpa_rows(q, k, v, np.array([0]), np.array([600])))


@pytest.mark.parametrize("position", [5, 103, 104, 150, 700])
def test_a_ring_reads_its_window_by_position(library, position):
    rng = np.random.default_rng(4)
    window, size = 40, 104
    k, v = rows(rng, 2, 300, 32), rows(rng, 2, 300, 32)
    q = rng.normal(0, 0.2, (1, 4, 32)).astype(f32)
    count = min(size, position + 1)
    slots = np.arange(count)
    held = position - (position - slots) % size
    allowed = (held >= 0) & (held > position - window)
    k[:, 100:][:, :count][:, ~allowed] = np.nan  # what has left the window is not even read
    base, length = np.array([100]), np.array([count])
    args = {"position": np.array([position]), "ring": np.array([size]), "window": window}
    got = host.sdpa_rows(library, q, k, v, base, length, **args)
    clean = np.nan_to_num(k)
    assert np.array_equal(got, SDPA.sdpa_rows(q, clean, v, base, length, allowed[None]))


def test_gated_delta_step_equals_its_definition_and_leaves_idle_rows_alone(library):
    rng = np.random.default_rng(5)
    width, steps, heads, value, key = 4, 5, 3, 16, 96
    q, k = rng.normal(0, 0.1, (2, width, steps, heads, key)).astype(f32)
    v = rng.normal(0, 1, (width, steps, heads, value)).astype(f32)
    decay, beta = rng.uniform(0, 1, (2, width, steps, heads)).astype(f32)
    state = rng.normal(0, 1, (width, heads, value, key)).astype(f32)
    live = np.array([1, 0, 1, 1])
    y, new = host.gated_delta_step(library, q, k, v, decay, beta, state, live=live)
    true_y, true_state = np.zeros_like(v), state
    for t in range(steps):
        inner = [x[:, t] for x in (q, k, v, decay, beta)]
        true_y[:, t], true_state = DELTA.gated_delta_step(*inner, true_state)
    on = live.astype(bool)
    assert np.array_equal(y[on], true_y[on])
    assert np.array_equal(new[on], true_state[on])
    assert np.array_equal(new[~on], state[~on])
    assert (y[~on] == 0).all()


def test_a_fused_multiply_shows(tmp_path):
    """The check can fail: the same text with multiplies fused into adds gives other bits."""
    if " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no fused multiply-add to misuse")
    fused = host.build(tmp_path, "-mfma", "-ffp-contract=fast")
    rng = np.random.default_rng(6)
    k, v = rows(rng, 1, 600, 64), rows(rng, 1, 600, 64)
    q = rng.normal(0, 0.2, (1, 2, 64)).astype(f32)
    got = host.sdpa_rows(fused, q, k, v, np.array([0]), np.array([600]))
    true = SDPA.sdpa_rows(q, k, v, np.array([0]), np.array([600]))
    assert not np.array_equal(got, true)
    assert np.abs(got - true).max() < 1e-5
