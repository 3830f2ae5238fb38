"""The bundled calibrations: refitted from their own figures, compared with the published ones."""

import json
from dataclasses import replace

import pytest

from qwisp.cost import calibrated_pairs, load_cost, read_cost, write_cost
from qwisp.cost.fit import fit_cost, residuals
from qwisp.cost.store import calibration_path
from qwisp.errors import BadInput, NotCalibrated
from qwisp.spec.catalog import machine_names

QWEN = ("qwen3.6-35b-a3b", "m1-max-64gb")
GEMMA = ("gemma-4-26b-a4b", "m5-max-36gb")
FITTED = (
    "round_ps chunk_ps token_ps depth_ps window_depth_ps step_ps_by_width row_ps copy_bytes_per_s"
)


@pytest.fixture(scope="module")
def published(request):
    truth_dir = request.getfixturevalue("truth_dir")
    return json.loads((truth_dir / "measurements.json").read_text())


@pytest.mark.parametrize("pair", calibrated_pairs(), ids=" on ".join)
def test_the_stored_coefficients_follow_from_the_stored_figures(pair):
    stored, measured = read_cost(calibration_path(*pair))
    again = fit_cost(measured)
    for name in FITTED.split():
        assert getattr(again, name) == getattr(stored, name), name
    fresh = residuals(again, measured)
    assert [r.label for r in fresh] == [r.label for r in stored.residuals]
    assert [round(r.fitted_s, 6) for r in fresh] == [r.fitted_s for r in stored.residuals]
    assert stored.provenance


def test_a_changed_figure_changes_the_fit(tmp_path):
    _, measured = read_cost(calibration_path(*QWEN))
    slower = tuple(p._replace(seconds=p.seconds * 1.1) for p in measured.prefill)
    model = write_cost(tmp_path / "x.json", replace(measured, prefill=slower))
    assert model.token_ps > load_cost(*QWEN).token_ps


def test_only_the_1024_and_atomic_series_are_fitted():
    _, measured = read_cost(calibration_path(*QWEN))
    used = {p.label.split(",")[0] for p in measured.prefill if p.used}
    assert used == {"12K budget 1024", "12K budget 0"}


@pytest.mark.truth
def test_the_figures_are_the_published_stalls(published):
    _, measured = read_cost(calibration_path(*QWEN))
    sweep = published["qwisp_token_budget_sweep"]
    worst = {str(row[0]): row[5] / 1000 for row in sweep["rows"]}
    for budget, stalls in sweep["stalls_s"].items():
        mine = [p.seconds for p in measured.prefill if p.label.startswith(f"12K budget {budget}")]
        assert len(mine) == len(stalls)
        assert sorted(mine)[:-1] == stalls[:-1]
        assert max(mine) == worst[budget]
    long = published["qwisp_token_budget_24k"]
    mine = [p.seconds for p in measured.prefill if p.label.startswith("24K budget 2048")]
    assert sorted(mine) == long["stalls_s"]
    rates = published["qwisp_lane_ab"]["per_stream_tok_s"]
    mine = {str(p.width): p.seconds for p in measured.decode if p.used}
    # Stored as seconds a step, to the microsecond.
    assert mine == {width: round(1 / rate, 6) for width, rate in rates.items()}


@pytest.mark.parametrize("own_tokens", [1, 2, 8, 15])
def test_the_assumed_length_of_the_short_prompt_does_not_matter(own_tokens):
    stored, measured = read_cost(calibration_path(*QWEN))
    points = tuple(
        p._replace(tokens=own_tokens) if "own prefill" in p.label else p for p in measured.prefill
    )
    again = fit_cost(replace(measured, prefill=points))
    for name in ("round_ps", "chunk_ps", "token_ps", "depth_ps"):
        # The corner of the optimum is the same; solving it from other rows may differ in a bit.
        assert getattr(again, name) == pytest.approx(getattr(stored, name), abs=1), name


@pytest.mark.truth
def test_the_gemma_figures_are_the_matched_sweep_outlier_included(published):
    _, measured = read_cost(calibration_path(*GEMMA))
    rows = published["fieldfare_retrieval_sweep"]["rows"]
    assert [(p.tokens, p.seconds) for p in measured.prefill if p.used] == [
        (row[1], row[4]) for row in rows
    ]
    assert 955.543 in [r.measured_s for r in load_cost(*GEMMA).residuals if r.used]


def test_one_gemma_run_is_an_outlier_and_the_other_fourteen_are_fitted_within_a_tenth():
    errors = sorted(r.error for r in load_cost(*GEMMA).residuals if r.used)
    assert errors[0] < -0.2
    assert max(map(abs, errors[1:])) < 0.1


def test_gemma_decode_was_never_published_so_its_times_are_refused():
    gemma = load_cost(*GEMMA)
    assert gemma.grant_ps(0, 57043, 446) > 0
    with pytest.raises(NotCalibrated, match="decode of gemma"):
        gemma.require()


def test_window_layers_saturate_by_the_share_of_the_model_geometry():
    gemma = load_cost(*GEMMA)
    assert gemma.window_tokens == 1024
    # 25 layers of 16 heads x 256 against 5 of 16 x 512.
    assert gemma.window_depth_ps * 2 == gemma.depth_ps * 5


@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "gemma-4-26b-a4b", "qwen3.8-flash-next"])
@pytest.mark.parametrize("machine", machine_names())
def test_no_pair_borrows_the_times_of_another(model, machine):
    if (model, machine) in calibrated_pairs():
        cost = load_cost(model, machine)
        assert (cost.model, cost.machine) == (model, machine)
        return
    with pytest.raises(NotCalibrated) as refused:
        load_cost(model, machine)
    assert refused.value.exit_code == 2
    assert f"{model} on {machine}" in refused.value.what
    assert "qwisp calibrate" in refused.value.todo


def test_an_own_calibration_wins_over_the_bundled_one(tmp_path):
    _, measured = read_cost(calibration_path(*QWEN))
    write_cost(tmp_path / calibration_path(*QWEN).name, replace(measured, name="mine"))
    assert load_cost(*QWEN, folders=(tmp_path,)).name == "mine"
    assert load_cost(*QWEN).name != "mine"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "qwisp-cost-1"}', '{"schema": "qwisp-cost-1", "model": 1}']
)
def test_a_broken_calibration_file_is_refused(tmp_path, text):
    path = tmp_path / "cost-a-b.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="qwisp calibrate"):
        read_cost(path)
