"""A study's bars stand before its measurements, and its verdict follows from receipts alone."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from qwisp.cli import main
from qwisp.errors import BadInput
from qwisp.receipts import Measured, Receipt, ReceiptBook, Stamp, read_receipts
from qwisp.receipts.record import hash_inputs, hash_of
from qwisp.study import Criterion, Study, Verdict, load_study, run_study, verdict_of
from qwisp.study.judge import verdict_on
from qwisp.study.page import receipts_origin

ROOT = Path(__file__).parents[1]
STAMP = Stamp(machine=(("cores", "2"),), packages=(), commit="0" * 40, is_dirty=False)
STUDY_FILE = """
from qwisp.receipts import Measured
from qwisp.study import Criterion, Study

def measure(book):
    for width in (2, 3, 4):
        book.once("share", {"width": width}, lambda w=width: Measured(0.05 * w, "1", "arithmetic"))
    book.once("mechanisms", {}, lambda: Measured(1, "", "count"))

study = Study(
    id="toy",
    question="Is <b>it</b> worth it?",
    criteria=[
        Criterion("material", "share", 0.19, "below", "less is noise", "max", 3, unit="1"),
        Criterion("possible", "mechanisms", 1, "below", "else nothing can be built"),
    ],
    protocol="three widths",
    measure=measure,
    findings=lambda receipts: [f"{len(receipts)} receipts, a | in it"],
)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "study.py").write_text(STUDY_FILE)
    return tmp_path


@pytest.fixture
def study(root: Path) -> Study:
    return load_study(root, "toy")


def run(study: Study, root: Path):
    ticks = itertools.count(1_700_000_000)
    return run_study(study, root / study.id, stamp=STAMP, clock=lambda: float(next(ticks)))


def rewrite(root: Path, change) -> None:
    """Put every receipt of the file through `change`, which may drop it by returning None."""
    path = root / "toy" / "receipts.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record))


def test_the_criteria_are_the_first_receipt_before_any_probe(root: Path, study: Study) -> None:
    path = root / "toy" / "receipts.jsonl"

    def look(book: ReceiptBook) -> None:
        (first,) = read_receipts(path).all
        assert first.metric == "criteria"
        assert first.value["criteria"] == study.declaration
        assert first.criteria_hash == study.criteria_hash
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(study, measure=look), root)
    assert len(read_receipts(path).all) == 1


def test_all_bars_passed_is_go(root: Path, study: Study) -> None:
    verdict = run(study, root)
    assert (verdict.word, verdict.why) == ("go", "all 2 criteria are passed")
    assert [one.value for one in verdict.judged] == [0.2, 1]
    assert verdict_of(study, root / "toy") == verdict


def test_an_edited_receipt_crosses_its_bar(root: Path, study: Study) -> None:
    run(study, root)

    def lower(record: dict) -> dict:
        if record["inputs"] == {"width": 4}:
            record["value"] = 0.18
        return record

    rewrite(root, lower)
    verdict = verdict_of(study, root / "toy")
    assert (verdict.word, verdict.judged[0].value) == ("no-go", 0.18)
    assert verdict.why == "material: 0.18 1 is below the bar of 0.19"


@pytest.mark.parametrize(
    ("value", "word"), [(0.19, "go"), (0.1899999, "no-go"), (True, "go"), (False, "no-go")]
)
def test_a_value_at_the_bar_passes(root: Path, study: Study, value: float, word: str) -> None:
    run(study, root)
    rewrite(root, lambda r: r | {"value": value} if r["metric"] == "share" else r)
    assert verdict_of(study, root / "toy").word == word


@pytest.mark.parametrize("metric", ["share", "mechanisms"])
def test_a_missing_measurement_is_undecided(root: Path, study: Study, metric: str) -> None:
    run(study, root)
    left = iter([None])  # the first receipt of the metric goes
    rewrite(root, lambda r: next(left, r) if r["metric"] == metric else r)
    verdict = verdict_of(study, root / "toy")
    assert verdict.word == "undecided"
    assert verdict.why.startswith("not measured: ")
    assert run(study, root).word == "go"  # and only that one is measured again


def test_no_receipts_are_undecided(root: Path, study: Study) -> None:
    assert verdict_of(study, root / "toy").word == "undecided"


def test_a_torn_last_line_leaves_the_verdict_open_and_the_run_resumes(root, study) -> None:
    run(study, root)
    path = root / "toy" / "receipts.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    verdict = verdict_of(study, root / "toy")
    assert (verdict.word, bool(verdict.torn)) == ("undecided", True)
    calls = []

    def counted(book: ReceiptBook) -> None:
        once = book.once
        book.once = lambda metric, inputs, fn: once(
            metric, inputs, lambda: (calls.append(metric), fn())[1]
        )
        study.measure(book)

    assert run(replace(study, measure=counted), root).word == "go"
    assert calls == ["mechanisms"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"bar": 0.1}, "material: bar was 0.19, is 0.1"),
        ({"kills_when": "above"}, "material: kills_when was 'below', is 'above'"),
        ({"why": "because"}, "material: why was"),
        ({"num_receipts": 2}, "material: num_receipts was 3, is 2"),
        ({"name": "new"}, "material is gone; new is new"),
    ],
)
def test_criteria_changed_after_the_first_receipt_are_refused(
    root: Path, study: Study, change: dict, complaint: str
) -> None:
    run(study, root)
    first, second = study.criteria
    changed = replace(study, criteria=[replace(first, **change), second], measure=pytest.fail)
    for ask in (lambda: verdict_of(changed, root / "toy"), lambda: run(changed, root)):
        with pytest.raises(BadInput, match="criteria changed after the first receipt") as caught:
            ask()
        assert complaint in caught.value.what
        assert "new id" in caught.value.todo


def test_a_forged_declaration_is_refused(root: Path, study: Study) -> None:
    run(study, root)

    def forge(record: dict) -> dict:
        if record["metric"] == "criteria":
            record["value"]["criteria"][0]["bar"] = 0.0
        return record

    rewrite(root, forge)
    with pytest.raises(BadInput, match="do not have the hash"):
        verdict_of(study, root / "toy")


def test_receipts_without_a_declaration_are_refused(root: Path, study: Study) -> None:
    run(study, root)
    before = (root / "toy" / "receipts.jsonl").read_text()
    for change in (
        lambda r: None if r["metric"] == "criteria" else r,
        lambda r: r | {"value": ["criteria"]} if r["metric"] == "criteria" else r,
        lambda r: moved(r, "metric") if r["metric"] == "criteria" else r,
    ):
        (root / "toy" / "receipts.jsonl").write_text(before)
        rewrite(root, change)
        with pytest.raises(BadInput, match="declares no criteria"):
            verdict_of(study, root / "toy")


def moved(record: dict, key: str) -> dict:
    """The same measurement, honestly made somewhere else."""
    receipt = Receipt(**(record | {key: "x"}))
    return record | {key: "x", "inputs_hash": hash_of(receipt)}


@pytest.mark.parametrize("change", [{"inputs": {"width": 4}}, {"model": "x"}, {"seed": 7}])
def test_a_receipt_whose_settings_were_edited_is_refused(
    root: Path, study: Study, change: dict
) -> None:
    run(study, root)
    rewrite(root, lambda r: r | change if r["inputs"] == {"width": 3} else r)
    with pytest.raises(BadInput, match="line 3 was edited: its inputs do not give"):
        verdict_of(study, root / "toy")


@pytest.mark.parametrize(("reduce", "value"), [("mean", 0.15), ("sum", 0.45)])
def test_receipts_of_another_origin_are_never_added_up(
    root: Path, study: Study, reduce: str, value: float
) -> None:
    share = Criterion("share", "share", 0.1, "below", "x", reduce, 3)
    averaged = replace(study, criteria=[share])
    assert run(averaged, root).judged[0].value == pytest.approx(value)  # of 0.1, 0.15 and 0.2
    for key in ("commit", "model", "instrument"):
        before = (root / "toy" / "receipts.jsonl").read_text()
        rewrite(root, lambda r, key=key: moved(r, key) if r["inputs"] == {"width": 3} else r)
        with pytest.raises(BadInput, match=f"differ in {key}"):
            verdict_of(averaged, root / "toy")
        (root / "toy" / "receipts.jsonl").write_text(before)


def test_mixed_units_and_surplus_receipts_are_refused(root: Path, study: Study) -> None:
    run(study, root)
    before = (root / "toy" / "receipts.jsonl").read_text()
    rewrite(root, lambda r: r | {"unit": "%"} if r["inputs"] == {"width": 3} else r)
    with pytest.raises(BadInput, match="mixes the units"):
        verdict_of(study, root / "toy")
    (root / "toy" / "receipts.jsonl").write_text(before)
    with ReceiptBook(
        root / "toy" / "receipts.jsonl",
        stamp=STAMP,
        clock=lambda: 0.0,
        study="toy",
        criteria_hash=study.criteria_hash,
    ) as book:
        book.once("share", {"width": 9}, lambda: Measured(1, "1", "x"))
    with pytest.raises(BadInput, match="takes 3 receipts, there are 4"):
        verdict_of(study, root / "toy")


GOOD = {"name": "a", "metric": "m", "bar": 2, "kills_when": "below", "why": "w"}
NOTHING = {"question": "?", "protocol": "p", "measure": pytest.fail}


@pytest.mark.parametrize(
    "words",
    [
        {"bar": float("nan")},
        {"bar": float("inf")},
        {"kills_when": "sideways"},
        {"reduce": "median"},
        {"num_receipts": 0},
        {"num_receipts": 0, "reduce": "max"},
        {"num_receipts": 2},
    ],
)
def test_a_criterion_that_cannot_be_judged_is_refused(words: dict) -> None:
    Criterion(**GOOD, reduce="max", num_receipts=1)
    with pytest.raises(BadInput):
        Criterion(**(GOOD | words))


def test_a_study_that_cannot_be_judged_is_refused() -> None:
    one, other = Criterion(**GOOD), Criterion(**(GOOD | {"name": "b"}))
    assert Study(id="a" * 64, criteria=[one, other], **NOTHING).criteria == (one, other)
    for id, criteria in (
        ("a" * 65, [one]),
        ("9a", [one]),
        ("", [one]),
        ("a", []),
        ("a", [one] * 2),
    ):
        with pytest.raises(BadInput):
            Study(id=id, criteria=criteria, **NOTHING)


def judged(criteria: list[Criterion], *measured: tuple, **changes) -> Verdict:
    """Judge receipts made by hand: (metric, value, unit), told apart by their number."""
    study = Study(id="s", criteria=criteria, **NOTHING)
    book = [("criteria", {"criteria": study.declaration} | changes.pop("value", {}), ""), *measured]
    stamp = {"machine": {}, "packages": {}, "commit": "c" * 40, "is_dirty": False}
    words = {"instrument": "x", "started_s": 0.0, "ended_s": 1.0, "inputs_hash": "", "study": "s"}
    words |= stamp | {"criteria_hash": study.criteria_hash} | changes
    made = [
        Receipt(metric=metric, value=value, unit=unit, inputs={"n": n}, **words)
        for n, (metric, value, unit) in enumerate(book)
    ]
    return verdict_on(study, [replace(one, inputs_hash=hash_of(one)) for one in made])


@pytest.mark.parametrize(("reduce", "value"), [("max", 8), ("min", 2), ("mean", 5), ("sum", 15)])
def test_values_are_reduced_as_declared(reduce: str, value: float) -> None:
    bar = Criterion(**GOOD, reduce=reduce, num_receipts=3, unit="s")
    found = judged([bar], ("m", 5, "s"), ("m", 2, "s"), ("m", 8, "s"))
    assert (found.judged[0].value, found.word, found.judged[0].unit) == (value, "go", "s")
    assert [r.metric for r in found.receipts] == ["m"] * 3  # the declaration is no measurement
    assert judged([replace(bar, metric="criteria")]).word == "undecided"


def test_the_word_names_every_bar_that_kills_and_all_that_is_missing() -> None:
    above = replace(Criterion(**GOOD), name="b", metric="n", kills_when="above")
    third = replace(above, name="c", metric="k", unit="GiB")
    found = judged([Criterion(**GOOD), above], ("m", 1.5, ""), ("n", 2.5, "ms"))
    assert found.word == "no-go"
    assert found.why == "a: 1.5 is below the bar of 2; b: 2.5 ms is above the bar of 2"
    assert judged([Criterion(**GOOD), above], ("m", 2, ""), ("n", 2, "")).word == "go"
    found = judged([above, third], ("n", 3, ""))
    assert found.word == "undecided"
    assert found.why == "not measured: c; so far b: 3 is above the bar of 2"
    assert [(one.outcome, one.unit) for one in found.judged] == [("kills", ""), ("missing", "GiB")]


def test_the_unit_of_the_bar_counts_and_the_last_of_two_equal_receipts() -> None:
    bar = Criterion(**GOOD, unit="GiB")
    with pytest.raises(BadInput, match="criterion 'a' mixes the units GiB, MiB"):
        judged([bar], ("m", 2048, "MiB"))
    with pytest.raises(BadInput, match="holds 'much'"):
        judged([bar], ("m", "much", "GiB"))
    with pytest.raises(BadInput, match="takes 1 receipts, there are 2 of m"):
        judged([bar], ("m", 2, "GiB"), ("m", 3, "GiB"))
    study = Study(id="s", criteria=[bar], **NOTHING)
    first = judged([bar], ("m", 2, "GiB")).receipts[0]
    declared = replace(first, metric="criteria", value={"criteria": study.declaration})
    assert verdict_on(study, [declared, first, replace(first, value=1)]).word == "no-go"


@pytest.mark.parametrize("value", [{"criteria": None}, {"criteria": []}])
def test_a_declaration_must_hold_the_criteria(value: dict) -> None:
    with pytest.raises(BadInput, match="do not have the hash"):
        judged([Criterion(**GOOD)], value=value)
    with pytest.raises(BadInput, match="criteria changed after the first receipt: a is new"):
        judged(
            [Criterion(**GOOD)], value=value, criteria_hash=hash_inputs(["s", value["criteria"]])
        )
    with pytest.raises(BadInput, match="is of another study"):
        judged([Criterion(**GOOD)], study="t")


def test_the_origin_names_every_commit_day_and_machine_once() -> None:
    found = judged([Criterion(**GOOD)], ("m", 2, ""))
    one = replace(found.receipts[0], model="b", machine={"cores": "2"}, started_s=86_400.0)
    other = replace(one, commit="", is_dirty=True, model="a", started_s=0.0, ended_s=86_400.0)
    found = replace(found, receipts=(one, other), torn="half")
    assert found.commits == ("cccccccccccc", "no commit+")
    rows = dict(receipts_origin(found))
    assert rows["receipts"].startswith("2, criteria hash ")
    assert rows["measured"] == "1970-01-01 to 1970-01-02"
    assert (rows["models"], rows["machines"]) == ("a, b", "cores 2")
    assert (rows["instruments"], rows["torn last line"]) == ("x", "4 characters skipped")
    assert "torn last line" not in dict(receipts_origin(replace(found, torn="")))
    nothing = dict(receipts_origin(replace(found, receipts=())))
    assert [nothing[key] for key in ("commits", "measured", "machines")] == [
        "none",
        "nothing yet",
        "none",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1", "exports no `study`"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("syntax error", "SyntaxError"),
        (STUDY_FILE.replace('"toy"', '"other"'), "holds the study 'other'"),
        (STUDY_FILE.replace('"toy"', '"../x"'), "is not a name"),
    ],
)
def test_a_study_file_that_cannot_be_used_is_bad_input(root, text: str, complaint: str) -> None:
    (root / "toy" / "study.py").write_text(text)
    with pytest.raises(BadInput, match=complaint):
        load_study(root, "toy")


def cli(root: Path, *words: str) -> int:
    return main(["study", *words, "--experiments", str(root)])


def test_the_report_is_one_page_and_a_verdict_text(root: Path, capsys) -> None:
    assert cli(root, "run", "toy") == 0
    assert cli(root, "report", "toy") == 0
    html = (root / "toy" / "report.html").read_text()
    assert "&lt;b&gt;it&lt;/b&gt;" in html
    assert "<b>it</b>" not in html
    text = (root / "toy" / "VERDICT.md").read_text()
    assert text.startswith("# toy: go\n")
    assert "| material | 0.2 1 | killed below 0.19 1 (max of 3) | passes | 3 |" in text
    assert cli(root, "report", "toy") == 0
    assert (root / "toy" / "VERDICT.md").read_text() == text
