"""Calibrating the engine: the way of `qwisp calibrate`, on a tiny model."""

import time
from statistics import median

import pytest

from qwisp.cost import load_cost, write_cost
from qwisp.cost.model import PS_PER_S
from qwisp.cost.store import calibration_path
from qwisp.engine.calibrate import calibrate, random_requests, timed_run
from qwisp.engine.weights.loading import load_decoder
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Ask
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.sim.cost_executor import CostExecutor

LANES, CHUNK, CONTEXT = 4, 64, 1024


@pytest.fixture(scope="module")
def model():
    return load_decoder("tiny:hybrid")


def _calibrate(model, context_tokens, repeats):
    return calibrate(
        model,
        machine="this",
        lanes=LANES,
        context_tokens=context_tokens,
        chunk_tokens=CHUNK,
        clock=time.process_time,
        repeats=repeats,
    )


def test_the_engine_is_calibrated_into_a_file_that_loads(model, tmp_path):
    measured = _calibrate(model, 512, repeats=1)
    path = tmp_path / calibration_path("tiny:hybrid", "this").name
    cost = write_cost(path, measured)
    assert load_cost("tiny:hybrid", "this", folders=(tmp_path,)) == cost
    assert cost.require() is cost
    assert (cost.chunk_tokens, cost.chunk_rule, cost.copy_measured) == (CHUNK, "aligned", True)
    assert [width for width, _ in cost.step_ps_by_width] == [1, 2, 3, 4]
    assert len(cost.residuals) == len(measured.prefill) + len(measured.decode)
    assert cost.grant_ps(0, 256, 4) + cost.round_ps > 0


@pytest.mark.slow  # processor times of a shared machine drift: three pairs of runs, minutes
def test_the_simulator_predicts_another_run_of_the_engine(model, tmp_path):
    errors = []
    for seed in range(3):
        # A calibration and the run it predicts lie side by side, so that both meet the same load.
        cost = write_cost(tmp_path / "x.json", _calibrate(model, CONTEXT, repeats=1))
        errors += _errors_of_a_run(model, cost, seed)
    assert len(errors) == 3 * 2 * 6
    assert median(errors) < 0.15, [round(e, 3) for e in errors]


def first_and_last(rounds):
    """When each request had its first and its last token, in seconds; all come at once."""
    now_s, found = 0.0, {}
    for round, outcome, elapsed_s in rounds:
        for i in round.decode:
            # The first token of a repeated round comes when its first step is over.
            first_s, _ = found.get(i, (now_s + elapsed_s / outcome.rounds, 0))
            found[i] = (first_s, now_s + elapsed_s)
        now_s += elapsed_s
    return found


def _errors_of_a_run(model, cost, seed):
    """Relative errors of first and last token of each request, engine against simulator."""
    prompts = (900, 300, 700, 90, 600, 500)  # more requests than lanes: two have to wait
    asks = {i: Ask(i, prompt, 20 + 15 * i) for i, prompt in enumerate(prompts)}
    settings = Settings(budget_tokens=2 * CHUNK, chunk_tokens=CHUNK)
    rounds = timed_run(
        model,
        asks,
        random_requests(asks, model.decoder.spec.vocab, seed=seed),
        settings=settings,
        lanes=LANES,
        context_tokens=CONTEXT,
        clock=time.process_time,
    )
    layout, size = Layout.windows(LANES, CONTEXT), SessionBytes(model.spec, None, CHUNK)
    executor = CostExecutor([(0, ask, ask.max_new) for ask in asks.values()], cost, size)
    drive(Scheduler(RowSpace(layout, size), settings), executor)
    errors = []
    for i, (first_s, last_s) in _first_and_last(rounds).items():
        record = executor.records[i]
        errors.append(abs(record.first_ps / PS_PER_S / first_s - 1))
        errors.append(abs(record.end_ps / PS_PER_S / last_s - 1))
    return errors


def _first_and_last(rounds):
    """When each request had its first and its last token, in seconds from the start."""
    now_s, found = 0.0, {}
    for round, outcome, elapsed_s in rounds:
        for i in round.decode:
            # The first token of a repeated round comes when its first step is over.
            first_s = found.get(i, (now_s + elapsed_s / outcome.rounds, 0))[0]
            found[i] = (first_s, now_s + elapsed_s)
        now_s += elapsed_s
    return found
