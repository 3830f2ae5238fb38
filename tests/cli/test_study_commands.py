"""`qwisp study`: run, judge, list; bad words are two lines and exit 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.cli import main
from tests.test_study import STUDY_FILE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "study.py").write_text(STUDY_FILE)
    return tmp_path


def cli(root: Path, *words: str) -> int:
    return main(["study", *words, "--experiments", str(root)])


def test_the_command_line_runs_judges_and_lists(root: Path, capsys) -> None:
    assert cli(root, "verdict", "toy") == 0
    assert "undecided: not measured: material, possible" in capsys.readouterr().out
    assert cli(root, "run", "toy") == 0
    assert "go: all 2 criteria are passed" in capsys.readouterr().out
    assert cli(root, "verdict", "toy", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["criteria"][0]["value"]) == ("go", 0.2)
    (root / "broken").mkdir()
    (root / "broken" / "study.py").write_text("x = 1")
    assert cli(root, "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["study"], row["verdict"]) for row in rows] == [
        ("broken", "unreadable"),
        ("toy", "go"),
    ]


def test_bad_words_are_two_lines_and_exit_2(root: Path, capsys) -> None:
    for words in (["verdict", "nothing"], ["run", "../toy"], ["frobnicate"], ["verdict"]):
        assert cli(root, *words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["study", "list", "--experiments", str(root / "none")]) == 2


def test_a_list_of_no_studies_is_no_success(tmp_path: Path, capsys) -> None:
    assert main(["study", "list", "--experiments", str(tmp_path)]) == 2
    assert "holds 0 studies" in capsys.readouterr().err
