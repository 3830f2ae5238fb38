from dataclasses import replace

import numpy as np
import pytest

from qwisp.cost.fit import fit_copies, fit_cost, fit_decode, least_absolute, prefill_ps, residuals
from qwisp.cost.measured import CopyPoint, DecodePoint, Measurements, PrefillPoint
from qwisp.cost.model import PS_PER_S, CostModel
from qwisp.errors import BadInput, NotCalibrated

TRUE = CostModel(
    name="toy",
    machine="desk",
    model="toy",
    chunk_tokens=64,
    chunk_rule="aligned",
    round_ps=2 * 10**9,
    chunk_ps=5 * 10**9,
    token_ps=3 * 10**8,
    depth_ps=2 * 10**5,
    window_depth_ps=3 * 10**5,
    window_tokens=128,
    step_ps_by_width=((1, 10**10), (2, 14 * 10**9)),
    row_ps=2 * 10**5,
    copy_bytes_per_s=2 * 10**9,
)


SHAPES = ((1, 1, 0, 64), (1, 4, 0, 256), (4, 4, 256, 256), (2, 8, 512, 512))
ALONE = tuple(shape for shape in SHAPES for _ in range(2))


def _measure(rounds=SHAPES):
    """What a machine that is exactly TRUE would have measured, plus two odd chunk counts."""
    shapes = [*rounds, (1, 2, 32, 64), (3, 3, 1000, 150), (1, 16, 0, 1024)]
    points = [PrefillPoint("", 1.0, *shape, width=i % 2) for i, shape in enumerate(shapes)]
    return Measurements(
        name="toy",
        model="toy",
        machine="desk",
        chunk_tokens=64,
        chunk_rule="aligned",
        window_weight=1.5,
        window_tokens=128,
        prefill=tuple(p._replace(seconds=prefill_ps(TRUE, p) / PS_PER_S) for p in points),
        decode=tuple(
            DecodePoint("", (TRUE.step_ps(w) + TRUE.row_ps * rows) / PS_PER_S, w, rows)
            for w in (1, 2)
            for rows in (0, 1000, 5000)
        ),
        copies=(CopyPoint("", 1.0, 2 * 10**9), CopyPoint("", 0.25, 5 * 10**8)),
    )


def test_clean_measurements_give_the_coefficients_back():
    found = fit_cost(_measure())
    for name in ("round_ps", "chunk_ps", "token_ps", "depth_ps", "window_depth_ps", "row_ps"):
        # Seconds are binary floats: 1 part in 10^6 is far below what any clock resolves.
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name
    assert found.step_ps_by_width == TRUE.step_ps_by_width
    assert found.copy_bytes_per_s == TRUE.copy_bytes_per_s
    assert found.copy_measured


def test_every_measured_time_has_a_residual_and_a_wild_one_stays_visible():
    measured = _measure()
    wild = measured.prefill[1]._replace(seconds=measured.prefill[1].seconds * 3)
    points = (measured.prefill[0], wild, *measured.prefill[2:])
    measured = replace(measured, prefill=points)
    found = fit_cost(measured)
    errors = [r.error for r in residuals(found, measured)]
    assert len(errors) == len(points) + len(measured.decode)
    assert errors[1] == pytest.approx(-2 / 3, abs=1e-6)
    assert max(map(abs, errors[:1] + errors[2:])) < 1e-6


def test_the_fit_is_a_minimum_that_no_nearby_coefficients_beat():
    rng = np.random.default_rng(5)
    design = rng.uniform(0.1, 3, (12, 3))
    seconds = design @ [1.0, 0.0, 2.0] + rng.uniform(0.0, 0.4, 12)
    best = least_absolute(design, seconds, 1 / seconds)

    def loss(x):
        return float((abs(design @ x - seconds) / seconds).sum())

    for _ in range(2000):
        other = np.maximum(0, best + rng.normal(0, 0.05, 3))
        assert loss(best) <= loss(other) + 1e-12


def test_a_hundred_points_are_fitted_and_the_half_that_agrees_wins():
    x = np.arange(1.0, 101.0)
    seconds = 3 + 2 * x
    seconds[::3] = 1e4  # 34 of 100 points are wild; a least-absolute line runs through the rest
    found = least_absolute(np.stack([np.ones(100), x], axis=1), seconds, np.ones(100))
    assert found.tolist() == pytest.approx([3.0, 2.0], rel=1e-9)


def test_no_coefficient_is_negative():
    line = np.array([[1.0, x] for x in (1, 2, 3, 4)])
    assert (least_absolute(line, np.array([0.5, 2.0, 3.5, 5.0]), np.ones(4)) >= 0).all()


@pytest.mark.parametrize(
    ("design", "seconds", "says"),
    [
        (np.ones((4, 2)), np.ones(4), "tell 2 coefficients apart"),
        (np.ones((1, 2)), np.ones(1), "1 measured times for 2"),
    ],
)
def test_times_that_settle_nothing_are_refused(design, seconds, says):
    with pytest.raises(BadInput, match=says):
        least_absolute(design, seconds, np.ones(len(seconds)))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_prefill_of_no_time_is_refused(seconds):
    first, *others = _measure().prefill
    measured = replace(_measure(), prefill=(first._replace(seconds=seconds), *others))
    with pytest.raises(BadInput, match="not above zero"):
        fit_cost(measured)


def test_rows_cost_nothing_where_no_run_varied_them_and_never_less_than_nothing():
    assert fit_decode([DecodePoint("", 0.01, 1, 100), DecodePoint("", 0.02, 2, 900)])[1] == 0
    assert fit_decode([DecodePoint("", 0.02, 1, 0), DecodePoint("", 0.01, 1, 900)])[1] == 0


def test_a_decode_step_of_no_time_is_refused():
    with pytest.raises(BadInput, match="no time"):
        fit_decode([DecodePoint("", 0.0, 1)])


def test_what_was_not_measured_stays_unknown():
    measured = _measure()
    with pytest.raises(NotCalibrated, match="decode"):
        fit_cost(replace(measured, decode=()))  # its prefills ran beside decoding lanes
    alone = tuple(p for p in _measure(ALONE).prefill if not p.width)
    no_decode = fit_cost(replace(measured, decode=(), prefill=alone))
    no_prefill = fit_cost(replace(measured, prefill=()))
    assert (no_decode.has_prefill, no_decode.has_decode) == (True, False)
    assert (no_prefill.has_prefill, no_prefill.has_decode) == (False, True)
    with pytest.raises(BadInput, match="copy speed"):
        fit_cost(replace(measured, copies=()))
    assert fit_copies([]) == 0
