"""Calibrating the simulator gives its own cost model back: the whole way of `qwisp calibrate`."""

import pytest

from qwisp.cost import CostModel
from qwisp.cost.fit import fit_cost, residuals
from qwisp.cost.measured import CopyPoint, Measurements
from qwisp.cost.model import PS_PER_S
from qwisp.cost.timed import Timed, calibration_asks, hold_out, measured_points
from qwisp.scheduling.contract import Outcome
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, RowBytes
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.sim.cost_executor import CostExecutor

LANES, CHUNK, CONTEXT = 4, 64, 2048
TRUE = CostModel(
    name="toy",
    machine="desk",
    model="toy",
    chunk_tokens=CHUNK,
    chunk_rule="aligned",
    round_ps=2 * 10**9,
    chunk_ps=5 * 10**9,
    token_ps=3 * 10**8,
    depth_ps=2 * 10**5,
    step_ps_by_width=((1, 10**10), (2, 14 * 10**9), (3, 13 * 10**9), (4, 20 * 10**9)),
    row_ps=2 * 10**4,
    copy_bytes_per_s=2 * 10**9,
)


def _run(budget_tokens, longest=CONTEXT):
    layout = Layout.windows(LANES, CONTEXT)
    settings = Settings(budget_tokens=budget_tokens, chunk_tokens=CHUNK)
    asks = calibration_asks(CHUNK, longest, LANES)
    executor = CostExecutor([(0, ask, ask.max_new) for ask in asks], TRUE, RowBytes())
    timed = Timed(executor, clock=lambda: executor.now_ps / PS_PER_S)
    drive(Scheduler(RowSpace(layout, RowBytes()), settings), timed)
    return timed.rounds


@pytest.fixture(scope="module")
def points():
    # Two budgets tell a cost per round from one per chunk, two lengths rows from lanes.
    runs = [_run(budget, longest) for budget in (CHUNK, 4 * CHUNK) for longest in (CONTEXT, 256)]
    return measured_points([round for run in runs for round in run])


def test_a_calibrated_simulator_gives_its_own_costs_back(points):
    prefill, decode = points
    measured = Measurements(
        name="toy",
        model="toy",
        machine="desk",
        chunk_tokens=CHUNK,
        chunk_rule="aligned",
        prefill=hold_out(prefill, 12),
        decode=decode,
        copies=(CopyPoint("", 1.0, 2 * 10**9),),
    )
    found = fit_cost(measured)
    for name in ("round_ps", "chunk_ps", "token_ps", "depth_ps", "row_ps"):
        # Rows of a repeated round are counted at its middle, to a whole row.
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    for (w, ps), (true_w, true_ps) in zip(
        found.step_ps_by_width, TRUE.step_ps_by_width, strict=True
    ):
        assert w == true_w
        assert ps == pytest.approx(true_ps, rel=1e-5)
    assert any(not p.used for p in measured.prefill)
    assert max(abs(r.error) for r in residuals(found, measured)) < 1e-3


def test_every_width_and_several_depths_are_seen(points):
    prefill, decode = points
    assert {p.width for p in decode} == set(range(1, LANES + 1))
    assert len({p.start for p in prefill}) >= 4
    assert len({p.chunks // p.rounds for p in prefill}) >= 2


def test_a_round_that_failed_or_copied_gives_no_point():
    rounds = _run(CHUNK)
    failed = [replace_outcome(r) for r in rounds]
    assert measured_points(failed) == ((), ())


def replace_outcome(timed_round):
    outcome = timed_round.outcome
    return timed_round._replace(outcome=Outcome(outcome.rounds, outcome.produced, (), ((0, "x"),)))
