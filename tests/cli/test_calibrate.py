"""`qwisp calibrate` from the outside."""

import json

import pytest

from qwisp.cli import main
from qwisp.cost import load_cost

pytestmark = pytest.mark.mlx


def test_what_was_calibrated_is_what_the_next_command_loads(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = "calibrate --model tiny:llama --lanes 2 --context 512 --chunk 64 --repeats 1 --json"
    assert main(words.split()) == 0
    document = json.loads(capsys.readouterr().out)
    cost = load_cost("tiny:llama", "this")
    assert document["file"].startswith(str(tmp_path))
    assert [w for w, _ in cost.step_ps_by_width] == [1, 2]
    assert len(document["residuals"]) == len(cost.residuals)
    values = {row["term"]: row["value"] for row in document["rows"]}
    assert values["a decode step of 2 lanes"] == cost.step_ps(2) / 1e9


@pytest.mark.parametrize(
    "words",
    [
        "--model tiny --context 100",
        "--model tiny --context 1M",
        "--model tiny --lanes 0",
        "--model tiny --repeats 0",
        "--model nowhere",
        "--model tiny --chunk 100",
    ],
)
def test_bad_input_is_two_lines_and_exit_2(words, capsys):
    assert main(["calibrate", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
