"""The resident projection: never under a measurement, tight, and no constant may slip."""

from __future__ import annotations

import json

import pytest

from qwisp.errors import BadInput
from qwisp.memory.calibration import MeasuredPoint, load_calibration, load_residency
from qwisp.memory.engines.fieldfare import ExpertSlots, expert_stride_bytes, peak_metal, resident
from qwisp.memory.fit_constants import Left, fit_base_bytes, fit_constants, lowest_line_above
from qwisp.memory.leave_one_out import leave_one_out
from qwisp.memory.projection import Term, project
from qwisp.memory.validate import check_point, validate
from qwisp.memory.weights import load_weights
from qwisp.spec.catalog import load_model
from qwisp.units import MIB

CALIBRATION = load_calibration()
CONSTANTS = ("metal_scratch_bytes", "process_bytes", "prompt_bytes_per_token")


def failing(**changes) -> list[str]:
    return [point.id for point in validate(**changes) if not point.holds]


def over_mib() -> dict[str, float]:
    return {point.id: point.over_bytes / MIB for point in validate()}


def test_no_projection_is_under_its_measurement():
    assert min(over_mib().values()) >= 0
    assert failing() == []


def test_gemma_rungs_and_the_14_token_check_are_at_most_32_mib_over():
    gemma = {id: mib for id, mib in over_mib().items() if id.startswith("gemma") and "m" in id}
    footprint = {id: mib for id, mib in gemma.items() if not id.endswith("metal")}
    assert len(footprint) == 6
    assert max(footprint.values()) <= 32


def test_peak_metal_is_the_cache_plus_32_mib_exactly():
    metal = [point for point in validate() if point.instrument == "metal_peak"]
    assert len(metal) == 5
    assert all(point.over_bytes == 0 for point in metal)
    assert CALIBRATION.constants.metal_scratch_bytes == 32 * MIB


def test_qwen_at_the_256k_cap_is_within_ten_percent():
    point = next(p for p in validate() if p.id == "qwen-256k-cap-17-tokens")
    assert 0 <= point.over_bytes <= point.measured_bytes // 10


def test_expert_slot_points_are_within_three_percent():
    points = [point for point in validate() if point.instrument == "rss"]
    assert len(points) == 4
    assert all(0 <= point.over_bytes <= 0.03 * point.measured_bytes for point in points)


@pytest.mark.parametrize("name", CONSTANTS)
def test_lowering_a_fitted_constant_by_five_percent_is_noticed(name: str):
    assert failing(constants=CALIBRATION.constants.scaled(name, 95))


def test_lowering_the_base_of_the_residency_sweep_by_five_percent_is_noticed():
    assert failing(base_bytes=load_residency().base_bytes * 95 // 100)


def test_the_shipped_constants_are_those_the_points_ask_for():
    assert fit_constants(CALIBRATION.points, CALIBRATION) == CALIBRATION.constants
    sweep = load_residency()
    assert fit_base_bytes(sweep.points, sweep) == sweep.base_bytes


def test_there_are_fewer_fitted_constants_than_measured_points():
    assert len(CONSTANTS) + 1 < len(validate())


@pytest.mark.truth
def test_the_points_are_the_published_measurements(truth_dir):
    truth = json.loads((truth_dir / "measurements.json").read_text())
    published = []
    rungs = truth["fieldfare_gemma_rungs"]
    for cap, prompt, _, _, _, footprint, metal in rungs["rows"]:
        published += [
            ("gemma-4-26b-a4b", cap, prompt, "phys_footprint", footprint),
            ("gemma-4-26b-a4b", cap, prompt, "metal_peak", metal),
        ]
    cap = truth["fieldfare_cap_driven"]
    qwen = truth["fieldfare_qwen_256k_cap"]
    short = truth["fieldfare_qwen_4k"]
    published += [
        ("gemma-4-26b-a4b", cap["max_context"], cap["prompt_tokens"], "phys_footprint",
         cap["footprint_mib"]),
        ("qwen3.6-35b-a3b", qwen["max_context"], qwen["prompt_tokens"], "phys_footprint",
         qwen["phys_footprint_mib"]),
    ]  # fmt: skip
    published += [
        ("qwen3.6-35b-a3b", short["max_context"], None, "phys_footprint", mib)
        for mib in short["footprint_mib"]
    ]
    ours = [
        (p.model, p.context_tokens, p.prompt_tokens, p.instrument, p.measured_mib)
        for p in CALIBRATION.points
    ]
    assert sorted(ours, key=str) == sorted(published, key=str)
    weights = load_weights("gemma-4-26b-a4b")
    assert weights.common_bytes == rungs["weights_held_bytes"]
    assert weights.expert_stride_bytes == rungs["expert_stride_bytes"]
    assert weights.file_bytes == rungs["installed_pack_bytes"]
    sweep = truth["qwisp_expert_residency"]
    assert [(p.resident_experts_per_layer, p.measured_bytes) for p in load_residency().points] == [
        (experts, round(gb * 1e9)) for experts, gb in sweep["rows"]
    ]
    # The published base and stride are rounded; ours agree to that rounding.
    assert round(load_residency().base_bytes / 1e9, 1) == sweep["non_expert_base_gb"]
    stride = load_weights("qwen3.6-35b-a3b").expert_stride_bytes
    assert round(stride / 1e6, 2) == sweep["expert_mb_per_layer"]


def test_leaving_one_point_out_predicts_it_and_may_err_below():
    errors = {left.id: left.error_bytes / MIB for left in leave_one_out()}
    assert len(errors) == len(validate())
    # Gemma alone predicts Qwen at the same cap: the terms carry over, nothing is fitted per row.
    assert abs(errors["qwen-256k-cap-17-tokens"]) < 10
    assert all(abs(mib) < 32 for id, mib in errors.items() if id.startswith("gemma"))
    assert min(errors.values()) < 0, "a fit that saw the point would never be under it"


def test_strides_follow_from_geometry():
    assert expert_stride_bytes(2816, 704) == load_weights("gemma-4-26b-a4b").expert_stride_bytes
    assert expert_stride_bytes(2048, 512) == load_weights("qwen3.6-35b-a3b").expert_stride_bytes


def test_published_slot_figures_differ_in_their_scope():
    gemma = ExpertSlots(count=16, scope="in all", layers=30, stride_bytes=3358720)
    qwen = ExpertSlots(count=16, scope="per layer", layers=40, stride_bytes=1769472)
    assert round(gemma.num_bytes / MIB) == 51
    assert round(qwen.num_bytes / 1e9, 2) == 1.13


def test_terms_depend_on_what_causes_them():
    model = load_model("gemma-4-26b-a4b")

    def at(context: int, prompt: int, slots: int | None = None):
        return resident(model, context, prompt, CALIBRATION, slots_per_layer=slots)

    base = at(65536, 1000)
    for changed, differs in [
        (at(131072, 1000), {"cache"}),
        (at(65536, 2000), {"prompt"}),
        (at(65536, 1000, slots=32), {"expert slots"}),
    ]:
        assert {
            a.name for a, b in zip(base.terms, changed.terms, strict=True)
            if a.num_bytes != b.num_bytes
        } == differs  # fmt: skip


def test_mapped_weights_are_shown_and_not_counted():
    memory = resident(load_model("qwen3.6-35b-a3b"), 4096, 0, CALIBRATION)
    weights = memory.terms[0]
    assert (weights.name, weights.is_counted) == ("common weights", False)
    counted = sum(term.num_bytes for term in memory.terms if term.is_counted)
    assert memory.total_bytes == counted


@pytest.mark.parametrize(
    ("model", "machine", "provenance"),
    [
        ("gemma-4-26b-a4b", "m5-max-36gb", "measured here"),
        ("gemma-4-26b-a4b", "m4-16gb", "borrowed"),
        ("qwen3.6-35b-a3b", "m5-max-36gb", "borrowed"),
    ],
)
def test_constants_are_measured_here_only_where_they_were_fitted(model, machine, provenance):
    memory = resident(load_model(model), 4096, 0, CALIBRATION, machine=machine)
    assert memory.provenance == provenance


def test_an_unmeasured_term_leaves_the_sum_blank():
    known = Term(name="a", num_bytes=5, provenance="exact")
    unknown = Term(name="b", num_bytes=None, provenance="unmeasured")
    assert project([known]).total_bytes == 5
    both = project([known, unknown])
    assert (both.total_bytes, both.known_bytes, both.provenance) == (None, 5, "unmeasured")


def test_a_model_whose_split_nobody_measured_is_refused():
    with pytest.raises(BadInput, match="not measured"):
        resident(load_model("qwen3.8-flash-next"), 4096, 0, CALIBRATION)


def test_a_point_that_is_higher_than_projected_fails():
    point = CALIBRATION.points[0]
    values = {name: getattr(point, name) for name in MeasuredPoint.__dataclass_fields__}
    higher = MeasuredPoint(**values | {"measured_mib": point.measured_mib + 1})
    assert check_point(point, CALIBRATION).holds
    assert not check_point(higher, CALIBRATION).holds


def test_peak_metal_grows_with_the_cap_alone():
    model = load_model("qwen3.6-35b-a3b")
    low, high = (peak_metal(model, n, CALIBRATION).known_bytes for n in (4096, 8192))
    assert high - low == 4096 * 20480


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(0, 10)], (10, 0)),
        ([(0, 10), (10, 10)], (10, 0)),
        ([(0, 10), (10, 5)], (10, 0)),  # a term never shrinks with the prompt
        ([(0, 10), (3, 11)], (10, 1)),  # slopes are rounded up to whole bytes
        ([(5, 10), (5, 12)], (12, 0)),
    ],
)
def test_the_lowest_line_lies_under_no_point(points, line):
    left = [Left(*point) for point in points]
    assert lowest_line_above(left) == line
    base, slope = line
    assert all(base + slope * p.prompt_tokens >= p.left_bytes for p in left)
