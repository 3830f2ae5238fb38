"""Every command the README shows runs, and prints what the README says it prints.

`make test` is left out: this file is a part of it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LEFT_OUT = {"make test", "make lab"}  # this test itself; a server that never ends


def examples(text: str) -> list[tuple[str, list[str]]]:
    """Return `(command, lines of output)` of the console blocks, `$ ` marking a command."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].split("  #")[0].strip(), []))
            elif line.strip():
                found[-1][1].append(line.rstrip())
    return found


def run(command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "120"}
    return subprocess.run(
        shlex.split(command), cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )


EXAMPLES = [example for example in examples(README.read_text()) if example[0] not in LEFT_OUT]


def test_the_readme_shows_the_two_commands_and_an_example() -> None:
    commands = [command for command, _ in examples(README.read_text())]
    assert commands[:2] == ["make demo", "make test"]
    assert any(output for _, output in EXAMPLES)


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_command_runs_and_prints_what_is_shown(command: str, output: list[str]) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr
    printed = iter(line.rstrip() for line in done.stdout.splitlines())
    for line in output:
        if line.strip() != "...":
            assert line in printed, f"{line!r} is not printed, or not in this order"


def test_every_folder_and_file_of_the_tree_exists() -> None:
    tree = re.search(r"^```text\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)[1]
    names = re.findall(r"^(\s*)([\w./-]+)", tree, re.MULTILINE)
    folder = ""
    for indent, name in names:
        path = ROOT / (folder if indent else "") / name
        assert path.exists(), f"{name} is in the README's tree and nowhere else"
        folder = folder if indent else name
    shown = {name.rstrip("/") for indent, name in names if not indent}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    folders = {path.split("/")[0] for path in tracked if "/" in path and path[0] != "."}
    assert folders - shown == set(), "folders the tree does not show"
