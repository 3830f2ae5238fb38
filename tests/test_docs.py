"""The docs name every package, and the code they show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path for path in DOCS.glob("*.md") if re.search(r"^```python\n", path.read_text(), re.MULTILINE)
)


def packages() -> set[str]:
    return {
        path.name.removesuffix(".py")
        for path in (ROOT / "qwisp").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }


def test_the_structures_page_names_every_package() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "structures.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert packages() - {"__main__", "__init__"} - named == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path, monkeypatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    files = re.findall(
        r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    for name, source in files:
        (tmp_path / name).write_text(source)
    scope: dict[str, object] = {"__name__": page.stem}
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
