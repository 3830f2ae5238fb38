"""The study of the prefill budget: its receipts alone carry the verdict, and can overturn it."""

import json
import shutil
from pathlib import Path

import pytest

from qwisp.errors import BadInput
from qwisp.study import load_study, verdict_markdown, verdict_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FOLDER = EXPERIMENTS / "token_budget"


@pytest.fixture(scope="module")
def study():
    return load_study(EXPERIMENTS, "token_budget")


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "token_budget")
    return tmp_path / "token_budget"


def _edit(folder, metric, change):
    path = folder / "receipts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["metric"] == metric:
            line["value"] = change(line["value"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_stored_verdict_is_what_the_receipts_say(study):
    verdict = verdict_of(study, FOLDER)
    assert verdict.word == "go"
    assert verdict_markdown(verdict) == (FOLDER / "VERDICT.md").read_text()


def test_an_independent_reader_finds_the_same_three_figures(study):
    rows = [json.loads(line) for line in (FOLDER / "receipts.jsonl").read_text().splitlines()]
    stalls = {row["inputs"]["name"]: row["value"] for row in rows if row["metric"] == "stalls"}
    published = {
        s["name"]: s for s in json.loads((FOLDER / "published.json").read_text())["series"]
    }
    names = ["12K, budget 2,048", "12K, budget 4,096", "12K, budget 8,192"]
    worst = max(abs(max(stalls[n]) / published[n]["worst_s"] - 1) for n in names)
    total = max(abs(sum(stalls[n]) / published[n]["sum_s"] - 1) for n in names)
    k = max(abs(len(stalls[n]) - published[n]["k"]) for n in published)
    values = {j.criterion.metric: j.value for j in verdict_of(study, FOLDER).judged}
    assert (values["worst_error_12k"], values["sum_error_12k"], values["k_error"]) == (
        pytest.approx(worst, abs=1e-6),  # stored to six digits
        pytest.approx(total, abs=1e-6),
        k,
    )


@pytest.mark.parametrize(
    ("metric", "killing"),
    [
        ("k_error", 1),
        ("law_breaks", 1),
        ("worst_error_12k", 0.051),
        ("sum_error_12k", 0.041),
        ("worst_error_24k", 0.051),
        ("first_token_error", 0.21),
    ],
)
def test_a_worse_receipt_crosses_the_bar(study, copy, metric, killing):
    _edit(copy, metric, lambda value: killing)
    verdict = verdict_of(study, copy)
    assert verdict.word == "no-go"
    killed = [j.criterion.metric for j in verdict.judged if j.outcome == "kills"]
    assert killed == [metric]


def test_a_missing_receipt_leaves_it_undecided(study, copy):
    path = copy / "receipts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if json.loads(x)["metric"] != "first_token_error"))
    assert verdict_of(study, copy).word == "undecided"


def test_a_bar_moved_after_the_first_receipt_is_refused(copy):
    path = copy / "study.py"
    path.write_text(path.read_text().replace("            0.20,", "            0.10,"))
    moved = load_study(copy.parent, "token_budget")
    with pytest.raises(BadInput, match=r"criteria changed after the first receipt.*0\.2"):
        verdict_of(moved, copy)


@pytest.mark.truth
def test_the_figures_compared_with_are_the_published_ones(truth_dir):
    truth = json.loads((truth_dir / "measurements.json").read_text())
    mine = json.loads((FOLDER / "published.json").read_text())
    sweep = truth["qwisp_token_budget_sweep"]
    for budget, rounds, _, p90_ms, p99_ms, worst_ms, sum_s in sweep["rows"]:
        series = next(
            s
            for s in mine["series"]
            if s["name"].startswith("12K") and s["budget_tokens"] == budget
        )
        assert (series["k"], series["sum_s"]) == (rounds, sum_s)
        assert (series["p90_s"], series["p99_s"], series["worst_s"]) == (
            p90_ms / 1000,
            p99_ms / 1000,
            worst_ms / 1000,
        )
        assert series["prompt_tokens"] == sweep["prompt_tokens"]
    long = truth["qwisp_token_budget_24k"]
    with_budget, without = [s for s in mine["series"] if s["name"].startswith("24K")]
    assert (with_budget["k"], with_budget["worst_s"]) == (11, max(long["stalls_s"]))
    assert with_budget["sum_s"] == pytest.approx(sum(long["stalls_s"]), abs=1e-9)
    assert without["worst_s"] == long["off_single_stall_s"]
    run = truth["qwisp_lane_ab"]
    assert mine["first_token"]["first_token_s"] == run["ttft_ms"] / 1000
    assert mine["first_token"]["prompt_tokens"] == run["prompt_tokens"]
