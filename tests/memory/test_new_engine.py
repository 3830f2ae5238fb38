"""A new engine's memory is one file and one line: the one that CONTRIBUTING.md shows is counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from qwisp.cli import main
from qwisp.memory.dialects import DIALECTS
from tests.shown import load_shown


@pytest.fixture
def paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_shown("qwisp/memory/engines/paged.py", tmp_path)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(DIALECTS, "paged", module.Paged)  # its one line


def cache_bytes(capsys: pytest.CaptureFixture[str], *words: str) -> int:
    asked = "fit --json --model qwen3.6-35b-a3b --machine m1-max-64gb --weights 20GiB"
    assert main([*asked.split(), *words]) == 0
    terms = json.loads(capsys.readouterr().out)["terms"]
    (cache,) = [term["num_bytes"] for term in terms if term["term"] == "cache"]
    return cache


def test_fit_counts_in_its_rows(paged: None, capsys: pytest.CaptureFixture[str]) -> None:
    # 10 layers keep 2 heads of 256 keys and 256 values in 2 bytes; 30 keep an fp32 state of 32
    # heads of 128 x 128, and a tail of 3 x 8,192 elements in 2 bytes.
    row, fixed = 10 * 2 * 2 * 256 * 2, 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert cache_bytes(capsys, "--engine", "paged", "--context", "1000") == 1024 * row + fixed
    assert cache_bytes(capsys, "--engine", "paged", "--context", "1025") == 1536 * row + fixed


def test_without_its_line_it_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "qwen3.6-35b-a3b", "--engine", "paged"]) == 2
    assert "engine 'paged' is not known" in capsys.readouterr().err
