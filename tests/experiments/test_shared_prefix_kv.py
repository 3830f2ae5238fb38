"""The study of duplicated prefix rows: receipts carry the verdict, and aliasing keeps every bit."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qwisp.errors import BadInput
from qwisp.receipts import ReceiptBook, Stamp
from qwisp.study import load_study, run_study, verdict_markdown, verdict_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FOLDER = EXPERIMENTS / "shared_prefix_kv"
MIB = 2**20


@pytest.fixture(scope="module")
def study():
    return load_study(EXPERIMENTS, "shared_prefix_kv")


def part(study, name: str):
    """Return a file of the study as a module."""
    return importlib.import_module(f"{study.measure.__module__.rpartition('.')[0]}.{name}")


@pytest.fixture(scope="module")
def mechanisms(study):
    return part(study, "mechanisms")


@pytest.fixture(scope="module")
def aliasing(study):
    module = part(study, "aliasing")
    if reason := module.why_not():
        pytest.skip(reason)
    return module


@pytest.fixture
def copy(tmp_path):
    target = tmp_path / "shared_prefix_kv"
    shutil.copytree(FOLDER, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def _edit(folder, metric, change):
    path = folder / "receipts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["metric"] == metric:
            line["value"] = change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


# ---- the verdict -------------------------------------------------------------------------------


def test_the_stored_verdict_is_what_the_receipts_say(study):
    verdict = verdict_of(study, FOLDER)
    assert verdict.word == "no-go"
    assert [j.criterion.name for j in verdict.judged if j.outcome == "kills"] == ["material"]
    assert verdict_markdown(verdict) == (FOLDER / "VERDICT.md").read_text()


def test_an_independent_reader_finds_the_same_three_figures(study):
    rows = [json.loads(line) for line in (FOLDER / "receipts.jsonl").read_text().splitlines()]
    run = json.loads((FOLDER / "published.json").read_text())
    copies = (run["lanes"] - 1) * run["arena_tokens"] * 20480 / MIB
    share = max(copies / peak for peak in run["peak_footprint_mib"].values())
    trials = [r["value"] for r in rows if r["metric"] == "trial"]
    good = [t["changed"] == t["kernel_changed"] == 0 and t["bytes_saved"] > 0 for t in trials]
    held = [r for r in rows if r["metric"] == "duplicated_bytes"]
    model = [(r["inputs"]["lanes"] - 1) * r["inputs"]["shared_tokens"] * 12288 for r in held]
    error = max(abs(r["value"] - m) for r, m in zip(held, model, strict=True))
    values = [j.value for j in verdict_of(study, FOLDER).judged]
    assert values == [pytest.approx(share, abs=1e-6), max(good), error]  # stored to six digits


@pytest.mark.parametrize(
    ("edits", "word", "killed"),
    [
        ({"published_share": 0.11}, "go", []),
        ({"published_share": 0.10}, "go", []),
        ({"published_share": 0.0999}, "no-go", ["published_share"]),
        ({"saves_untouched": 0}, "no-go", ["published_share", "saves_untouched"]),
        ({"published_share": 0.2, "saves_untouched": 0}, "no-go", ["saves_untouched"]),
        ({"published_share": 0.2, "duplicated_error": 1}, "no-go", ["duplicated_error"]),
    ],
)
def test_other_receipts_give_another_verdict(study, copy, edits, word, killed):
    for metric, value in edits.items():
        _edit(copy, metric, lambda line, value=value: value)
    verdict = verdict_of(study, copy)
    assert verdict.word == word
    assert [j.criterion.metric for j in verdict.judged if j.outcome == "kills"] == killed


def test_without_aliasing_as_on_a_platform_that_lacks_it_the_study_is_undecided(study, copy):
    path = copy / "receipts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"address aliasing"' not in line))
    assert verdict_of(study, copy).word == "undecided"


def test_a_bar_moved_after_the_first_receipt_is_refused(copy):
    path = copy / "study.py"
    path.write_text(path.read_text().replace("            0.10,", "            0.03,"))
    moved = load_study(copy.parent, "shared_prefix_kv")
    try:
        with pytest.raises(BadInput, match=r"criteria changed after the first receipt.*0\.03"):
            verdict_of(moved, copy)
    finally:
        load_study(EXPERIMENTS, "shared_prefix_kv")


def test_the_frontier_in_the_receipts_is_the_published_one():
    rows = [json.loads(line) for line in (FOLDER / "receipts.jsonl").read_text().splitlines()]

    def by_lanes(metric):
        return {r["inputs"]["lanes"]: r["value"] for r in rows if r["metric"] == metric}

    crossing = by_lanes("crossing_tokens")
    assert [round(crossing[b] / 1000, 1) for b in (2, 3, 4)] == [243.7, 114.9, 75.3]
    at_128k = by_lanes("share_at_128k")
    assert [round(at_128k[b] * 100, 1) for b in (2, 3, 4)] == [5.9, 11.2, 15.9]
    most, limit = by_lanes("largest_tokens"), 0.7 * 64 * 1024
    for lanes, tokens in most.items():
        peak_mib = 37_947.39 + lanes * (61.41 + tokens * 20480 / MIB)
        assert limit - lanes * 256 * 20480 / MIB < peak_mib < limit
    assert {b: most[b] >= crossing[b] for b in most} == {2: False, 3: True, 4: True, 8: True}


def test_what_is_computed_comes_out_again(study, tmp_path):
    probes = part(study, "probes")
    stored = {r.inputs_hash: r.value for r in verdict_of(study, FOLDER).receipts}
    stamp = Stamp(machine=(), packages=(), commit="", is_dirty=False)
    with ReceiptBook(
        tmp_path / "again.jsonl", stamp=stamp, clock=lambda: 0.0, study=study.id
    ) as book:
        probes.published_point(book)
        probes.frontier(book)
        probes.granules_at_full_shape(book)
    assert len(book.receipts) > 30
    assert {r.inputs_hash: r.value for r in book.receipts}.items() <= stored.items()


def test_a_second_run_measures_nothing(study, copy):
    before = (copy / "receipts.jsonl").read_bytes()
    stamp = Stamp(machine=(), packages=(), commit="", is_dirty=False)
    assert run_study(study, copy, stamp=stamp, clock=lambda: 0.0).word == "no-go"
    assert (copy / "receipts.jsonl").read_bytes() == before


@pytest.mark.truth
def test_the_published_run_is_the_one_of_the_reference_files(truth_dir):
    truth = json.loads((truth_dir / "measurements.json").read_text())["qwisp_lane_ab"]
    mine = json.loads((FOLDER / "published.json").read_text())
    peaks = truth["peak_footprint_mib"]
    assert list(mine["peak_footprint_mib"].values()) == [peaks["round1"], peaks["post_fix"]]
    assert mine["source"] == truth["source"]
    assert mine["arena_tokens"] == truth["arena_tokens"]
    assert mine["prompt_tokens"] == truth["prompt_tokens"]
    assert truth["kv_bytes_per_token"] == 20480


# ---- aliasing ----------------------------------------------------------------------------------


def make_shape(aliasing, *, lanes: int, shared: int, granule_bytes: int, own: int = 40):
    per_granule = granule_bytes // 512
    rows = -(-(shared + own) // per_granule) * per_granule
    return aliasing.Shape(
        lanes=lanes, groups=2, rows=rows, dim=256, shared=shared, granule_bytes=granule_bytes
    )


def granule_sizes(aliasing) -> list[int]:
    return [aliasing.PAGE_BYTES * n for n in (1, 4, 16)]


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize("granule", [0, 1, 2], ids=["page", "4 pages", "16 pages"])
@pytest.mark.parametrize("shared", [7, 300, 513])
def test_aliased_lanes_have_the_same_bits_and_less_pss(
    aliasing, mechanisms, lanes, granule, shared
):
    granule_bytes = granule_sizes(aliasing)[granule]
    shape = make_shape(aliasing, lanes=lanes, shared=shared, granule_bytes=granule_bytes)
    case = mechanisms.make_case(shape, heads=2, own_rows=40, rng=np.random.default_rng(3))
    expected, private_bytes = mechanisms.frozen(case, aliases=False)
    trial = mechanisms.aliased(case, expected, private_bytes)
    assert (trial.changed, trial.of) == (0, lanes * 2)
    assert private_bytes == 2 * shape.num_bytes
    copies = 2 * shape.groups * (lanes - 1)
    # smaps rounds every mapping down to a KiB; keys and values have one a group and lane.
    rounding = 2 * shape.groups * lanes * 1024 if 4096 % lanes else 0
    assert copies * shape.mapped_bytes <= trial.bytes_saved
    assert trial.bytes_saved <= copies * shape.mapped_bytes + rounding
    assert case.duplicated_bytes - trial.bytes_saved < copies * granule_bytes


def test_bits_equal_to_a_kernel_that_never_saw_the_shared_buffer(aliasing, mechanisms):
    shape = make_shape(aliasing, lanes=2, shared=300, granule_bytes=aliasing.PAGE_BYTES)
    case = mechanisms.make_case(shape, heads=2, own_rows=40, rng=np.random.default_rng(4))
    out, _ = mechanisms.frozen(case, aliases=True)
    for lane in range(2):
        k, v = case.lane(lane)
        alone = mechanisms.SDPA.sdpa_rows(case.q[lane][None], k, v, np.array([0]), np.array([340]))
        assert np.array_equal(out[lane].view(np.uint32), alone[0].view(np.uint32))


def test_one_shared_row_changed_changes_every_lane_and_an_own_row_only_its_lane(
    aliasing, mechanisms
):
    shape = make_shape(aliasing, lanes=3, shared=300, granule_bytes=aliasing.PAGE_BYTES)
    case = mechanisms.make_case(shape, heads=2, own_rows=40, rng=np.random.default_rng(5))
    before, _ = mechanisms.frozen(case, aliases=True)

    def changed_lanes() -> list[bool]:
        after, _ = mechanisms.frozen(case, aliases=True)
        return (after != before).any(axis=(1, 2)).tolist()

    assert changed_lanes() == [False, False, False]
    case.own[1][:, 1, 5] += 1
    assert changed_lanes() == [False, True, False]
    case.shared[1][:, 5] += 1
    assert changed_lanes() == [True, True, True]


def test_what_cannot_be_mapped_is_refused(aliasing):
    with pytest.raises(BadInput, match="ends inside a granule"):
        aliasing.Shape(lanes=2, groups=1, rows=33, dim=256, shared=8, granule_bytes=16384)
    with pytest.raises(BadInput, match="use a multiple of the page"):
        aliasing.Shape(lanes=2, groups=1, rows=32, dim=256, shared=8, granule_bytes=1000)


# ---- the other mechanisms ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def solved(study, mechanisms):
    shape = part(study, "aliasing").Shape(lanes=3, groups=2, rows=384, dim=256, shared=300)
    case = mechanisms.make_case(shape, heads=4, own_rows=40, rng=np.random.default_rng(6))
    out = np.stack(
        [
            mechanisms.SDPA.sdpa_rows(q[None], *case.lane(i), np.array([0]), np.array([340]))[0]
            for i, q in enumerate(case.q)
        ]
    )
    return case, out


@pytest.mark.parametrize("page_rows", [16, 64, 256])
def test_a_page_table_keeps_the_bits_with_another_kernel(mechanisms, solved, page_rows):
    trial = mechanisms.paged(*solved, page_rows=page_rows, rng=np.random.default_rng(0))
    assert (trial.changed, trial.kernel_changed) == (0, True)
    assert trial.bytes_saved == 2 * 2 * 2 * (300 // page_rows * page_rows) * 512
    wrong = int(trial.note.split()[-2])  # a lane of two large pages can lie in order by chance
    assert wrong == 12 if page_rows < 256 else wrong > 0


def test_two_bases_keep_the_bits_and_a_split_softmax_does_not(mechanisms, solved):
    case, out = solved
    assert mechanisms.two_bases(case, out).changed == 0
    split = mechanisms.split_softmax(case, out)
    assert split.changed == split.of == 12
    assert float(split.note.rpartition(" ")[2]) < 1e-6  # the same result but for the order


def test_a_recurrent_state_does_not_come_back_after_even_one_token(mechanisms):
    for steps in (1, 8):
        trial = mechanisms.rewound_state(dim=64, steps=steps, rng=np.random.default_rng(1))
        assert trial.changed > trial.of // 10
        assert float(trial.note.rpartition(" ")[2]) < 1e-4  # the inverse is right, the bits are not
    assert mechanisms.rewound_state(dim=64, steps=0, rng=np.random.default_rng(1)).changed == 0


# ---- the engine --------------------------------------------------------------------------------


@pytest.mark.mlx
def test_lanes_hold_the_shared_rows_twice_and_nothing_else(study):
    toy = part(study, "toy")
    run = toy.in_a_process(
        lanes=2, shared_tokens=70, own_tokens=5, keeps_prefixes=False, new_tokens=2, chunk_tokens=64
    )
    assert run["duplicated_bytes"] == run["predicted_duplicated_bytes"] == 70 * 12288
    assert run["arena_bytes"] == run["predicted_arena_bytes"]
    assert run["peak_bytes"] > run["arena_bytes"]


@pytest.mark.mlx
def test_rows_with_other_bits_are_not_counted_as_held_twice(study):
    fan_out, toy = part(study, "fan_out"), part(study, "toy")
    rng = np.random.default_rng(8)
    same = tuple(rng.integers(0, 256, 30).tolist())
    prompts = [same + tuple(rng.integers(0, 256, 41).tolist()) for _ in range(2)]
    model = fan_out.load(toy.CONFIG)
    engine, watch, _ = fan_out.serve(model, prompts, new_tokens=2, chunk_tokens=64)
    assert fan_out.duplicated_bytes(engine, watch.places, 70) == 30 * 12288
    shifted = [p._replace(start_row=p.start_row + i) for i, p in watch.places.items()]
    assert fan_out.duplicated_bytes(engine, dict(enumerate(shifted)), 29) == 0


@pytest.mark.mlx
def test_a_toy_that_dies_says_why(study):
    toy = part(study, "toy")
    with pytest.raises(toy.RunEnded, match=r"ended with 1: TypeError: fan_out\(\) missing"):
        toy.in_a_process(lanes=2)
