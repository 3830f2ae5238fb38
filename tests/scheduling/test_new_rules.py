"""A new order and a new cut: one file each, named by its path or laid beside the shipped ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from qwisp.cli import main
from qwisp.cost import load_cost
from qwisp.policies import rule_names
from qwisp.sim.replay import replay, settings_for
from qwisp.testing import RowBytes, ScriptedRequest, play, sessions
from qwisp.trace.request import Request, Trace

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
ASKS = [ScriptedRequest(i, 8, 6, max_new=6) for i in range(4)]
LIFO = '''
def pick(waiting, fits, max_passed):
    """Return the youngest request if it fits."""
    last = len(waiting) - 1
    return last if fits(last) else None
'''
LARGEST = '''
def place(rows, free):
    """Return the largest free session."""
    largest = max(free, key=len, default=())
    return largest if len(largest) >= rows else None
'''


@pytest.fixture(params=["a file of one's own", "a file beside the shipped ones"])
def add(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Add a rule with nothing but its file; hand back the name it then has."""
    loaded = set(sys.modules)

    def added(kind: str, name: str, source: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        if request.param == "a file of one's own":
            return str(path)
        package = import_module(f"qwisp.scheduling.{kind}")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        assert name in rule_names(kind)
        return name

    yield added
    for name in set(sys.modules) - loaded:
        package, _, rule = name.rpartition(".")
        if package in ("qwisp.scheduling.orders", "qwisp.scheduling.cuts"):
            delattr(sys.modules[package], rule)
            del sys.modules[name]


def decided(rules: dict[str, str], *contexts: int) -> list[tuple[int, int]]:
    """Return (id, slot) as admitted; simulator and toy engine must log the very same."""
    settings = settings_for(COST, **{k: v for k, v in rules.items() if k == "order"})
    layout = replace(sessions(*contexts), **{k: v for k, v in rules.items() if k == "cut"})
    played = play(layout, ASKS, settings)
    asked = [Request(a.id, 0, a.prompt_tokens, a.output_tokens, a.max_new, ()) for a in ASKS]
    trace = Trace(name="four", requests=tuple(asked), source="here")
    run = replay(trace, layout, RowBytes(), COST, settings)
    assert run.log == played.log
    assert run.counts["finished"] == len(played.engine.ends) == len(ASKS)
    return [(entry.id, entry.what.slot) for entry in run.log if entry.kind == "admit"]


def test_an_order_is_one_file(add) -> None:
    assert decided({}, 40) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert decided({"order": add("orders", "lifo", LIFO)}, 40) == [(3, 0), (2, 0), (1, 0), (0, 0)]


def test_a_cut_is_one_file(add) -> None:
    assert decided({}, 40, 64, 48) == [(0, 0), (1, 2), (2, 1), (3, 0)]
    largest = add("cuts", "largest", LARGEST)
    assert decided({"cut": largest}, 40, 64, 48) == [(0, 1), (1, 2), (2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("kind", "option", "name", "source"),
    [("orders", "order", "lifo", LIFO), ("cuts", "cut", "largest", LARGEST)],
)
def test_the_command_line_takes_it_by_name(kind, option, name, source, add, tmp_path) -> None:
    trace = tmp_path / "few.jsonl"
    trace.write_text('{"id": 1, "arrival_s": 0, "prompt_tokens": 100, "output_tokens": 5}\n')
    words = ["--model=qwen3.6-35b-a3b", "--machine=m1-max-64gb", "--memory=12GiB"]
    words += [f"--trace={trace}", "--layout=16384x2", f"--{option}={add(kind, name, source)}"]
    assert main(["replay", *words]) == 0
