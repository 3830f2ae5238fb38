"""Notebooks stay thin, reproducible and free of widget state; nbval sees that they run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_it_is_thin(path: Path) -> None:
    cells = code_cells(path)
    assert len(cells) <= 12
    for cell in cells:
        assert len(source(cell).splitlines()) <= 10, source(cell)
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert node.end_lineno - node.lineno < 5, f"{node.name} belongs in the package"


def test_it_has_one_cell_of_parameters(path: Path) -> None:
    tagged = [c for c in code_cells(path) if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1


def test_no_line_hides_its_output_with_a_semicolon(path: Path) -> None:
    lines = [line for cell in code_cells(path) for line in source(cell).splitlines()]
    assert [line for line in lines if line.rstrip().endswith(";")] == []


def test_outputs_are_committed_without_widget_state_and_without_errors(path: Path) -> None:
    notebook = json.loads(path.read_text())
    cells = code_cells(path)
    assert all(cell["execution_count"] for cell in cells), "run it, then commit it"
    assert "widgets" not in notebook["metadata"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [o for o in outputs if o["output_type"] == "error"] == []
    assert [o for o in outputs if o.get("name") == "stderr"] == []
    for output in outputs:
        kinds = set(output.get("data", {}))
        assert not any("vegalite" in kind for kind in kinds), "call charts.setup() first"


def test_no_output_names_a_folder_of_the_machine_it_ran_on(path: Path) -> None:
    text = path.read_text()
    assert [
        word for word in ("/home/", "/Users/", "/root/", "/tmp/", "/work/") if word in text
    ] == []
