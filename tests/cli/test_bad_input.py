"""Whatever a user types or feeds in: exit 2, two lines on stderr, no traceback, nothing on stdout.

The second line says what to do. A file that is half right never counts as an empty success.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qwisp.cli import main

ROOT = Path(__file__).resolve().parents[2]
TRACE = str(ROOT / "data" / "traces" / "agents.jsonl")
GOOD = {
    "--model": "qwen3.6-35b-a3b",
    "--machine": "m1-max-64gb",
    "--memory": "12GiB",
    "--trace": TRACE,
    "--layout": "16384x4",
    "--rate": "1x",
}
Make = Callable[[Path], str]


def file(text: str | bytes, name: str = "trace.jsonl") -> Make:
    """Return a maker of a file with these contents."""

    def make(folder: Path) -> str:
        path = folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


LINE = '{"id": 1, "arrival_s": 0, "prompt_tokens": %s, "output_tokens": %s}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,%s,%s\n"
CASES: dict[str, tuple[str, str | Make]] = {
    "missing trace": ("--trace", "absent.csv"),
    "empty trace": ("--trace", file("")),
    "trace is a folder": ("--trace", str),
    "wrong columns": ("--trace", file("time,in,out\n1,2,3\n", "t.csv")),
    "header alone": ("--trace", file(AZURE.splitlines()[0] + "\n", "t.csv")),
    "negative prompt": ("--trace", file(LINE % (-5, 3))),
    "negative reply": ("--trace", file(AZURE % (5, -3), "t.csv")),
    "absurd prompt": ("--trace", file(LINE % ("9" * 40, 3))),
    "text for a number": ("--trace", file(LINE % ('"many"', 3))),
    "not a number": ("--trace", file(LINE % ("NaN", 3))),
    "no fields": ("--trace", file("{}\n")),
    "half a line": ("--trace", file((LINE % (5, 3)) + '{"id": 2, "arriv')),
    "binary": ("--trace", file(bytes(range(256)) * 9)),
    "truncated gzip": ("--trace", file(b"\x1f\x8b\x08\x00\x00\x00\x00", "t.csv.gz")),
    "unknown model": ("--model", "gpt-9"),
    "empty model": ("--model", ""),
    "model is a folder without config": ("--model", str),
    "model config is not JSON": ("--model", file("{", "config.json")),
    "model config is empty": ("--model", file("{}", "config.json")),
    "model config is a list": ("--model", file("[]", "config.json")),
    "unknown machine": ("--machine", "m9-ultra"),
    "machine is a path": ("--machine", "../../etc/passwd"),
    "memory 0": ("--memory", "0"),
    "memory below 0": ("--memory", "-3GiB"),
    "memory without a number": ("--memory", "much"),
    "memory in an unknown unit": ("--memory", "12parsec"),
    "memory nan": ("--memory", "nan"),
    "memory above the machine": ("--memory", "65GiB"),
    "memory above 100 %": ("--memory", "101%"),
    "list with an empty item": ("--layout", "65536,,16384"),
    "list with zero": ("--layout", "0x3"),
    "list with no count": ("--layout", "4096x"),
    "list below zero": ("--layout", "-4096x2"),
    "list overflows": ("--layout", "99999999999999999999x2"),
    "list with too many": ("--layout", "4096x999999999"),
    "unknown layout": ("--layout", "pages"),
    "session above the model": ("--layout", "999999999"),
    "rate 0": ("--rate", "0x"),
    "rate below 0": ("--rate", "-1x"),
    "rate text": ("--rate", "fast"),
    "unknown order": ("--order", "best"),
    "order file missing": ("--order", "absent.py"),
    "order file broken": ("--order", file("def pick(:\n", "broken.py")),
    "order file without pick": ("--order", file("x = 1\n", "empty.py")),
    "budget below 0": ("--budget", "-1"),
    "grow 0": ("--grow", "0"),
    "context 0": ("--context", "0"),
    "context above the model": ("--context", "999M"),
    "max-new 0": ("--max-new", "0"),
    "max-new text": ("--max-new", "some"),
}


@pytest.mark.parametrize("command", ["plan", "replay"])
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_two_lines_and_exit_2(command: str, case: str, tmp_path, capsys) -> None:
    option, value = CASES[case]
    given = {**GOOD, option: value(tmp_path) if callable(value) else value}
    words = [f"{name}={text}" for name, text in given.items()]
    assert main([command, "--json", *words]) == 2, case
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 2, err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in err
    assert "bug in qwisp" not in err
    assert len(lines[1]) > 5


@pytest.mark.parametrize("option", ["--model", "--machine", "--trace"])
@pytest.mark.parametrize("command", ["plan", "replay"])
def test_what_is_not_given_is_named(command: str, option: str, capsys) -> None:
    words = [f"{name}={text}" for name, text in GOOD.items() if name != option]
    assert main([command, *words]) == 2
    assert option in capsys.readouterr().err


FIT_CASES = [
    ["--model", "gpt-9"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m9"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--memory", "0"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--memory", "65GiB"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--context", "0"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--context", "-5"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--engine", "mine"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--lanes", "0"],
    ["--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb", "--weights", "none"],
    [],
]


@pytest.mark.parametrize("words", FIT_CASES, ids=" ".join)
def test_fit_refuses_bad_input_the_same_way(words: list[str], capsys) -> None:
    assert main(["fit", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "bug in qwisp" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["certify", "--model=tiny", "--seed=-1"],
        ["certify", "--model=tiny", "--width=9999"],
        ["generate", "--model=recall_kv", "--prompt=w5", "--chunk=0"],
        ["generate", "--model=recall_kv", "--tokens=5,-1"],
    ],
    ids=" ".join,
)
def test_the_engine_refuses_bad_input_the_same_way(words: list[str], capsys) -> None:
    pytest.importorskip("mlx.core")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "bug in qwisp" not in err
    assert words[-1].split("=")[1].split(",")[-1] in err.replace(",", "")


def test_times_nobody_measured_are_refused_with_the_remedy(capsys) -> None:
    words = ["--model=qwen3.6-35b-a3b", "--machine=m4-16gb", "--memory=4GiB", f"--trace={TRACE}"]
    assert main(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert "qwisp calibrate" in err
    assert "memory for sessions: 4.00 GiB" in out


def test_a_report_into_a_folder_is_refused(tmp_path, capsys) -> None:
    words = [f"{name}={text}" for name, text in GOOD.items()]
    assert main(["plan", *words, f"--report={tmp_path}"]) == 2
    assert "is a folder" in capsys.readouterr().err
