"""What real allocators printed comes out of layer geometry and dialects, row by row."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from qwisp.cli.reconcile import command
from qwisp.errors import BadInput
from qwisp.memory.reconcile import read_truth, reconcile

OWN_ROWS = Path(__file__).parents[1] / "data" / "allocator_rows.json"


@pytest.fixture
def own_rows():
    return read_truth(OWN_ROWS)


@pytest.mark.truth
def test_every_published_row_is_reproduced(truth_dir):
    results = reconcile(read_truth(truth_dir / "allocator_truth.json"))
    assert len(results) == 31
    assert [r for r in results if r.verdict != "reproduced"] == []


def test_every_hand_computed_row_is_reproduced(own_rows):
    assert [r for r in reconcile(own_rows) if r.verdict != "reproduced"] == []


def run(tmp_path, rows, *options):
    path = tmp_path / "rows.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows, default=float))
    return CliRunner().invoke(command, ["--truth", str(path), *options])


def test_last_line_counts_and_a_miss_exits_1(tmp_path, own_rows):
    result = run(tmp_path, own_rows)
    count = len(own_rows)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == f"{count} of {count} rows reproduced, 0 not modelled"
    own_rows[0] = {**own_rows[0], "measured_mib": 0.76}
    result = run(tmp_path, own_rows)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith(f"{count - 1} of {count} rows")


def test_json_csv_and_markdown_say_the_same(tmp_path, own_rows):
    document = json.loads(run(tmp_path, own_rows, "--json").stdout)
    assert document["reproduced"] == len(document["rows"]) == len(own_rows)
    for form, heads in (("--csv", 1), ("--markdown", 2)):
        result = run(tmp_path, own_rows, form)
        lines = result.stdout.splitlines()
        assert len(lines) == heads + len(own_rows)
        for line, row in zip(lines[heads:], document["rows"], strict=True):
            assert row["id"] in line
            assert row["verdict"] in line
        assert result.stderr == document["summary"] + "\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": {"new_option": 1}}, "new_option"),
        ({"options": {"tensor_parallel": 2}}, "tensor_parallel"),
        ({"options": {"unified": "yes"}}, "unified"),
        ({"options": {"ubatch": -1}}, "ubatch"),
        ({"options": ["unified"]}, "options is not an object"),
        ({"engine": "other"}, "other"),
        ({"engine": None}, "no dialect"),
        ({"part": "experts"}, "experts"),
        ({"k_type": "q3_9"}, "q3_9"),
        ({"k_type": 4}, "k_type"),
        ({"context": None}, "context"),
        ({"context": True}, "context"),
        ({"context": 0}, "context"),
        ({"n_seq": 0}, "n_seq"),
        ({"geometry": []}, "geometry"),
        ({"geometry": [{"kind": "rwkv", "count": 1}]}, "rwkv"),
        ({"geometry": [{"kind": "full_attention", "count": 1}]}, "kv_heads"),
    ],
)
def test_what_is_not_understood_is_not_modelled_and_says_why(tmp_path, own_rows, change, reason):
    row = {**copy.deepcopy(own_rows[0]), **change}
    result = run(tmp_path, [row])
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if "not modelled  " in line]
    assert reason in line.partition("not modelled")[2]
    assert result.output.splitlines()[-1] == "0 of 1 rows reproduced, 1 not modelled"


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", "[1]", '[{"id": "a"}]', '[{"measured_mib": true, "tolerance_mib": 1}]'],
)
def test_a_file_that_is_no_table_is_bad_input(tmp_path, text):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(BadInput):
        reconcile(read_truth(path))


def test_absent_options_mean_the_engines_defaults(own_rows):
    row = next(r for r in own_rows if r["id"] == "context-pad")
    bare = {key: value for key, value in row.items() if key not in ("options", "n_seq")}
    assert reconcile([bare])[0].verdict == "reproduced"


JUNK = [None, True, -1, 0, 1, 3, 10**12, 0.5, "", "f16", "q4_0", "vllm", [], {}, [1], {"a": 1}]


def test_damaged_rows_are_reproduced_missed_not_modelled_or_refused(own_rows):
    rng = random.Random(11)
    verdicts = Counter()
    for _ in range(2000):
        row = copy.deepcopy(rng.choice(own_rows))
        for _ in range(rng.randint(1, 3)):
            target = rng.choice([row, row["options"], *row["geometry"]])
            if not isinstance(target, dict) or not target:
                continue
            target[rng.choice([*target, "ubatch", "k_dim"])] = copy.deepcopy(rng.choice(JUNK))
            if not (isinstance(row["options"], dict) and isinstance(row["geometry"], list)):
                break
        try:
            verdicts[reconcile([row])[0].verdict] += 1
        except BadInput:
            verdicts["refused"] += 1
    assert set(verdicts) == {"reproduced", "missed", "not modelled", "refused"}
