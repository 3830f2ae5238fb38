"""Imports point one way, heavy libraries stay in their layer, files stay small."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import qwisp

ROOT = Path(qwisp.__file__).parents[1]
STRUCTURES = (ROOT / "docs" / "structures.md").read_text()


def drawn(page: str, after: str = "") -> list[set[str]]:
    """Return the layers that a page draws in its first code block behind `after`, lowest first.

    >>> drawn("```\\na  <-  c | d\\n   <-  e\\n```") == [{"a"}, {"c", "d"}, {"e"}]
    True
    """
    block = page[page.index(after) :].split("```")[1]
    return [set(layer.replace("|", " ").split()) for layer in block.split("<-")]


LAYERS = drawn(STRUCTURES)  # the page is the rule, so it cannot say anything else
ROOMS = drawn(STRUCTURES, "## The rooms of the engine")
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ROOM_RANK = {name: rank for rank, names in enumerate(ROOMS) for name in names}
RANK["__main__"] = RANK["cli"]
APART = {frozenset(pair) for pair in re.findall(r"(\w+) \| (\w+)", STRUCTURES.split("```")[1])}
ONLY_IN = {
    "mlx": {"engine"},
    "mlx_lm": {"engine/proof/peer.py"},  # an optional extra to be compared with, never a part
    "altair": {"charts", "report"},
    "ipywidgets": {"widgets"},
    "click": {"cli"},
}
# Decisions must replay: the scheduler sees no clock, no chance, no files, no arrays, and of bytes
# only the numbers it is given.
NOT_IN_SCHEDULING = {"time", "datetime", "random", "os", "pathlib", "pkgutil", "threading"}
NOT_IN_SCHEDULING |= {"numpy", "polars", "memory", "cost", "spec", "trace", "policies"}


def run_time_nodes(source: str) -> Iterator[ast.AST]:
    """Yield every node of a source, also inside functions; not what is there for types only."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def imported_modules(source: str) -> set[str]:
    """Return every module a source imports, or loads by a name that it spells (or begins)."""
    found: set[str] = set()
    for node in run_time_nodes(source):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(package), names=names, level=0):
                found |= {package} | {f"{package}.{alias.name}" for alias in names}
            case ast.ImportFrom():
                raise AssertionError("imports are absolute, so that this test can read them")
            case ast.Call(
                args=[
                    ast.Constant(value=str(name))
                    | ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]),
                    *_,
                ]
            ) if ast.unparse(node.func).endswith("import_module"):
                found.add(name.rstrip("."))
    return found


def violations(layer: str, source: str, place: str = "") -> list[str]:
    """Return what a file of `qwisp.<layer>` imports against the rules; `place` is its path."""
    wrong = []
    for module in sorted(imported_modules(source)):
        top, _, rest = module.partition(".")
        inner = rest.split(".")[0]
        if top == "qwisp" and inner in RANK:
            sideways = frozenset({layer, inner}) in APART
            blind = layer == "scheduling" and inner in NOT_IN_SCHEDULING
            if RANK[inner] > RANK[layer] or sideways or blind:
                wrong.append(f"{layer} imports qwisp.{inner}")
        if top in ONLY_IN and not {layer, place} & ONLY_IN[top]:
            wrong.append(f"{layer} imports {top}")
        if layer == "scheduling" and top in NOT_IN_SCHEDULING:
            wrong.append(f"scheduling imports {top}")
        if top in {"tests", "experiments", "notebooks"}:
            wrong.append(f"{layer} imports {top}")
    return wrong


def package_files() -> list[Path]:
    return sorted((ROOT / "qwisp").rglob("*.py"))


def sources(root: Path = ROOT) -> dict[str, str]:
    """Return every module of `qwisp` by its dotted name; a package goes by its own name."""
    named = {}
    for path in (root / "qwisp").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return named


def reached(source: str, modules: Collection[str]) -> set[str]:
    """Return which of `modules` a source imports, or loads by a name put together at run time.

    `from package import module` reaches the module, not what else the package offers;
    `import_module(f"qwisp.cli.{name}")` reaches every module of `qwisp.cli`.
    """
    found: set[str] = set()
    for node in run_time_nodes(source):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(package), names=names):
                parts = {f"{package}.{alias.name}" for alias in names}
                found |= parts if parts <= set(modules) else parts | {package}
            case ast.Call(args=[ast.JoinedStr(values=[ast.Constant(value=str(prefix)), *_]), *_]):
                if ast.unparse(node.func).endswith("import_module"):
                    found |= {name for name in modules if name.startswith(prefix)}
    return found & set(modules)


def circle(modules: dict[str, str]) -> list[str]:
    """Return modules that reach each other in a circle, also from inside functions; else none."""
    reach = {name: sorted(reached(text, modules) - {name}) for name, text in modules.items()}
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next(filter(None, (search(one, [*path, name]) for one in reach[name])), [])
        done.add(name)
        return found

    return next(filter(None, (search(name, []) for name in sorted(modules))), [])


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "qwisp").parts[0].removesuffix(".py")


def test_the_page_draws_every_package_and_has_a_line_for_it() -> None:
    packages = {path.stem for path in (ROOT / "qwisp").iterdir() if path.stem != "__pycache__"}
    assert RANK.keys() == packages - {"__init__"}
    rows = [row for row in STRUCTURES.splitlines() if row.startswith("| `")]
    named = [name.strip("` ") for row in rows for name in row.split("|")[1].split(",")]
    assert sorted(named) == sorted(RANK.keys() - {"__main__"})


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left_only(path: Path) -> None:
    layer = layer_of(path)
    if layer == "__init__":
        return
    assert layer in RANK, f"{layer} has no layer: give it one in LAYERS"
    place = path.relative_to(ROOT / "qwisp").as_posix()
    assert violations(layer, path.read_text(), place) == []


def room_violations(room: str, source: str) -> list[str]:
    """Return what a file of `qwisp.engine.<room>` imports from rooms that are not to its left."""
    inner = {m.split(".")[2] for m in imported_modules(source) if m.startswith("qwisp.engine.")}
    rooms = (inner & ROOM_RANK.keys()) - {room}
    return sorted(name for name in rooms if ROOM_RANK[name] >= ROOM_RANK[room])


def test_the_rooms_of_the_engine_import_those_to_their_left() -> None:
    folder = ROOT / "qwisp/engine"
    found = {path.stem for path in folder.iterdir()} - {"__init__", "__pycache__"}
    assert ROOM_RANK.keys() == found
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        if room != "__init__":
            assert room_violations(room, path.read_text()) == [], path


def test_a_wrong_way_between_rooms_is_found() -> None:
    assert room_violations("cache", "from qwisp.engine.model import ops") == ["model"]
    assert room_violations("cache", "def f():\n    import qwisp.engine.clients") == ["clients"]
    assert room_violations("model", "from qwisp.engine.cache.arena import Arena") == []
    assert room_violations("model", "from qwisp.engine.model.ops import at") == []


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
        ("engine", 'import_module("mlx_lm.models.cache")'),
        ("engine", 'importlib.import_module(f"mlx_lm.models.{name}")'),
        ("charts", 'importlib.import_module("mlx.core")'),
    ],
)
def test_a_wrong_import_is_found(layer: str, source: str) -> None:
    assert violations(layer, source) != []


def test_an_import_for_types_alone_is_no_dependency() -> None:
    source = "if TYPE_CHECKING:\n    from qwisp.sim import metrics\nelse:\n    import time"
    assert violations("memory", source) == []
    assert violations("scheduling", source) == ["scheduling imports time"]


def test_no_module_leads_back_to_itself() -> None:
    assert circle(sources()) == []


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"q.a": "import q.b", "q.b": "from q.a import x"}, ["q.a", "q.b", "q.a"]),
        ({"q.a": "def f():\n    from q import b", "q.b": "import q.a"}, ["q.a", "q.b", "q.a"]),
        (
            {"q.a": "from q.b import f", "q.b": "from q.c import g", "q.c": "from q.b import h"},
            ["q.b", "q.c", "q.b"],
        ),
        # A registry that loads by name reaches every module that it may load.
        (
            {"q.all": 'import_module(f"q.all.{name}")', "q.all.one": "from q.all import known"},
            ["q.all", "q.all.one", "q.all"],
        ),
        ({"q.a": "from q import b", "q": "import q.a", "q.b": ""}, []),
        ({"q.a": "import q.b", "q.b": "if TYPE_CHECKING:\n    import q.a"}, []),
    ],
)
def test_a_circle_is_found(modules: dict[str, str], found: list[str]) -> None:
    assert circle(modules) == found


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
