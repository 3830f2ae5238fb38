"""Imports point one way, heavy libraries stay in their layer, files stay small."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import qwisp

ROOT = Path(qwisp.__file__).parents[1]
LAYERS = [
    {"units", "errors", "receipts"},
    {"spec", "trace"},
    {"memory", "context_rule", "cost", "scheduling", "policies"},
    {"sim", "engine"},
    {"study", "probe", "planner", "sweep", "testing", "facts"},
    {"charts", "report"},
    {"widgets", "cli", "server", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "mlx": {"engine"},
    "mlx_lm": set(),  # an oracle for tests and a peer in benchmarks, never a part of qwisp
    "altair": {"charts", "report"},
    "ipywidgets": {"widgets"},
    "click": {"cli"},
}
# Decisions must replay: the scheduler sees no clock, no chance, no files, no arrays, and of bytes
# only the numbers it is given.
NOT_IN_SCHEDULING = {"time", "datetime", "random", "os", "pathlib", "pkgutil", "threading"}
NOT_IN_SCHEDULING |= {"numpy", "polars", "memory", "cost", "spec", "trace", "policies"}


def imported_modules(source: str) -> set[str]:
    """Return every module a source imports, also inside functions; not those for types only."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        todo.extend(ast.iter_child_nodes(node))
    return found


def violations(layer: str, source: str) -> list[str]:
    """Return what a file of `qwisp.<layer>` imports against the rules."""
    wrong = []
    for module in sorted(imported_modules(source)):
        top, _, rest = module.partition(".")
        inner = rest.split(".")[0]
        if top == "qwisp" and inner in RANK:
            sideways = {layer, inner} == {"sim", "engine"}
            blind = layer == "scheduling" and inner in NOT_IN_SCHEDULING
            if RANK[inner] > RANK[layer] or sideways or blind:
                wrong.append(f"{layer} imports qwisp.{inner}")
        if top in ONLY_IN and layer not in ONLY_IN[top]:
            wrong.append(f"{layer} imports {top}")
        if layer == "scheduling" and top in NOT_IN_SCHEDULING:
            wrong.append(f"scheduling imports {top}")
        if top in {"tests", "experiments", "notebooks"}:
            wrong.append(f"{layer} imports {top}")
    return wrong


def package_files() -> list[Path]:
    return sorted((ROOT / "qwisp").rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "qwisp").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left_only(path: Path) -> None:
    layer = layer_of(path)
    if layer == "__init__":
        return
    assert layer in RANK, f"{layer} has no layer: give it one in LAYERS"
    assert violations(layer, path.read_text()) == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("scheduling", "import time"),
        ("scheduling", "from qwisp.memory import footprint"),
        ("scheduling", "from qwisp import policies"),
        ("scheduling", "import pkgutil"),
        ("scheduling", "from pathlib import Path"),
        ("scheduling", "def f():\n    from qwisp.sim import metrics"),
        ("sim", "import qwisp.engine.cache.arena"),
        ("engine", "from qwisp import sim"),
        ("memory", "import mlx.core as mx"),
        ("widgets", "import altair as alt"),
        ("cli", "import ipywidgets"),
        ("sim", "from qwisp.charts import setup"),
        ("engine", "import mlx_lm"),
    ],
)
def test_a_wrong_import_is_found(layer: str, source: str) -> None:
    assert violations(layer, source) != []


def test_an_import_for_types_alone_is_no_dependency() -> None:
    source = "if TYPE_CHECKING:\n    from qwisp.sim import metrics\nelse:\n    import time"
    assert violations("memory", source) == []
    assert violations("scheduling", source) == ["scheduling imports time"]


def test_files_are_small(record_property) -> None:
    files = [
        path
        for folder in ("qwisp", "tests", "experiments", "kernels", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    too_long = {str(path): num for path, num in lines.items() if num > 400}
    median = statistics.median(num for path, num in lines.items() if path.parts[0] == "qwisp")
    record_property("median_lines", median)
    assert too_long == {}
    assert median <= 150, f"the median file of qwisp has {median} lines; about 120 is the aim"


def test_nobody_writes_a_utils_module() -> None:
    assert [path for path in package_files() if path.stem in {"utils", "util", "helpers"}] == []


def test_importing_qwisp_loads_no_heavy_library() -> None:
    code = "import qwisp, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"mlx", "altair", "ipywidgets", "polars", "numpy", "click", "rich", "jupyterlab"}
    assert set(out.stdout.split()) & heavy == set()


def test_the_public_names_are_few_and_all_exist() -> None:
    assert len(qwisp.__all__) <= 30
    assert [name for name in qwisp.__all__ if not hasattr(qwisp, name)] == []
