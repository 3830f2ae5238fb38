"""`qwisp lab` opens the asked folder, the nearest notebooks, or copies of the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwisp.cli import lab
from qwisp.errors import BadInput


def test_the_asked_folder_wins_and_must_exist(tmp_path: Path) -> None:
    assert lab.notebooks_folder(tmp_path, tmp_path) == tmp_path
    with pytest.raises(BadInput, match="not a folder"):
        lab.notebooks_folder(tmp_path / "absent", tmp_path)


def test_notebooks_here_come_before_the_package_s_own(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_mine.ipynb").write_text("{}")
    assert lab.notebooks_folder(None, tmp_path) == tmp_path / "notebooks"


def test_an_installed_package_copies_its_notebooks_for_editing(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site" / "qwisp"
    (package / "_notebooks").mkdir(parents=True)
    (package / "_notebooks" / "00_start_here.ipynb").write_text("{}")
    monkeypatch.setattr(lab, "_PACKAGE", package)
    here = tmp_path / "work"
    here.mkdir()
    assert lab.notebooks_folder(None, here) == here / "notebooks"
    assert (here / "notebooks" / "00_start_here.ipynb").is_file()


def test_without_any_notebooks_it_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lab, "_PACKAGE", tmp_path / "site" / "qwisp")
    with pytest.raises(BadInput, match="no notebooks"):
        lab.notebooks_folder(None, tmp_path)
