"""The command line's shell: quick help, two-line errors, exit codes, one document on stdout."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from qwisp import cli, errors
from qwisp.cli import SUMMARIES, main, output


def install(monkeypatch: pytest.MonkeyPatch, function) -> None:
    """Make `qwisp lab` run `function`."""
    from qwisp.cli import lab

    monkeypatch.setattr(lab, "command", click.command(name="lab")(function))


def fails_with(error: BaseException):
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "code", "first"),
    [
        (errors.BadInput("size 0", "give more"), 2, "error: size 0"),
        (errors.CheckFailed("3 rows miss", "look at them"), 1, "error: 3 rows miss"),
        (errors.BadInput("a\nb\r\nc", "give\nmore"), 2, "error: a b c"),
        (FileNotFoundError(2, "No such file", "x.csv"), 2, "error: x.csv: No such file"),
        (ZeroDivisionError("by zero"), 1, "error: ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), 130, "error: stopped by Ctrl-C"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_two_lines_and_a_code(monkeypatch, capsys, error, code, first) -> None:
    install(monkeypatch, fails_with(error))
    assert main(["lab"]) == code
    out, err = capsys.readouterr()
    lines = err.strip().splitlines()
    assert out == ""
    assert len(lines) == 2
    assert lines[0] == first
    assert "Traceback" not in err


def test_a_bug_shows_its_traceback_on_request(monkeypatch, capsys) -> None:
    install(monkeypatch, fails_with(ZeroDivisionError("by zero")))
    monkeypatch.setenv("QWISP_DEBUG", "1")
    assert main(["lab"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "help_for"),
    [
        (["nonsense"], "qwisp"),
        (["--nonsense"], "qwisp"),
        (["lab", "--nonsense"], "qwisp lab"),
        (["lab", "--port", "0"], "qwisp lab"),
        (["lab", "a", "b"], "qwisp lab"),
    ],
)
def test_a_slip_of_the_keys_names_the_help(capsys, words: list[str], help_for: str) -> None:
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert lines[1] == f"see: {help_for} --help"


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_lists_every_command_and_is_no_error(capsys, words: list[str]) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert len(SUMMARIES) >= 11
    for name in SUMMARIES:
        assert f"  {name} " in out


def test_every_command_of_the_table_has_its_file_and_every_file_its_line() -> None:
    with click.Context(cli.cli) as ctx:
        for name in cli.cli.list_commands(ctx):
            assert isinstance(cli.cli.get_command(ctx, name), click.Command), name
    for path in Path(cli.__file__).parent.glob("*.py"):
        body = ast.parse(path.read_text()).body
        if any(isinstance(node, ast.FunctionDef) and node.name == "command" for node in body):
            assert path.stem.replace("_", "-") in SUMMARIES, f"{path.name} is unreachable"


def test_a_new_command_is_one_file_and_one_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "count_lines.py").write_text(
        "import click\n"
        "from qwisp.cli import output\n\n\n"
        "@click.command()\n"
        "@click.argument('text')\n"
        "@output.formats\n"
        "def command(text: str, output_format: str) -> None:\n"
        "    rows = [{'lines': text.count(';') + 1}]\n"
        "    output.emit(rows, [output.Column('lines')], output_format)\n"
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    monkeypatch.setitem(SUMMARIES, "count-lines", "Count lines.")
    assert main(["count-lines", "a;b;c", "--csv"]) == 0
    assert capsys.readouterr().out == "lines\n3\n"
    assert main(["--help"]) == 0
    assert "  count-lines " in capsys.readouterr().out
    assert main(["count-line"]) == 2
    assert "Did you mean 'count-lines'?" in capsys.readouterr().err


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from qwisp.cli import main; main(['--help']);"
        "print(*sorted(n for n in sys.modules if n.startswith('qwisp.')), file=sys.stderr);"
        "print(*{n.split('.')[0] for n in sys.modules}, file=sys.stderr)"
    )
    err = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, tops = err.stderr.splitlines()
    assert own.split() == ["qwisp.cli", "qwisp.errors"]
    assert set(tops.split()) & {"polars", "numpy", "rich", "altair", "mlx", "httpx"} == set()


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, click; from qwisp.cli import lab, main\n"
        "lab.command = click.command(lambda: [print('x' * 1000) for _ in range(1000)])\n"
        "sys.exit(main(['lab']))"
    )
    pipe = f'"{sys.executable}" -c "$CODE" | head -c 10'
    run = subprocess.run(
        ["bash", "-c", pipe], env={"CODE": code, "PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert run.stderr == b""
    assert run.stdout == b"x" * 10


ROWS = [
    {"name": "a|b", "size_bytes": 2048, "share": 0.5, "note": None},
    {"name": "c\x1b[31m", "size_bytes": 1, "share": 1234.5, "note": "[red]"},
]
COLUMNS = [
    output.Column("name", "layout"),
    output.Column("size_bytes", "size", lambda n: f"{n:,} B"),
    output.Column("share"),
    output.Column("note"),
]


@click.command()
@output.formats
def _table(output_format: str) -> None:
    output.note("a remark", output_format)
    output.emit(ROWS, COLUMNS, output_format)


@pytest.fixture
def table(monkeypatch):
    from qwisp.cli import lab

    monkeypatch.setattr(lab, "command", _table)


@pytest.mark.usefixtures("table")
def test_json_prints_one_document_and_nothing_else(capsys) -> None:
    assert main(["lab", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": 1, "rows": ROWS}
    assert err == "a remark\n"


@pytest.mark.usefixtures("table")
def test_a_table_aligns_numbers_right_and_lets_no_text_steer_the_terminal(capsys) -> None:
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a remark"
    head, first, second = lines[1], lines[3], lines[4]
    assert first.index("2,048 B") + 7 == second.index("1 B") + 3 == head.index("size") + 4
    assert r"c\x1b[31m" in second
    assert "[red]" in second
    assert first.endswith("-")


@pytest.mark.usefixtures("table")
def test_csv_has_raw_values_under_names_with_units(capsys) -> None:
    assert main(["lab", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["name,size_bytes,share,note", "a|b,2048,0.5,"]


@pytest.mark.usefixtures("table")
def test_markdown_has_the_printed_cells(capsys) -> None:
    assert main(["lab", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "| layout | size | share | note |",
        "|:---|---:|---:|:---|",
        "| a\\|b | 2,048 B | 0.5 | - |",
    ]


@pytest.mark.usefixtures("table")
def test_two_formats_are_refused(capsys) -> None:
    assert main(["lab", "--json", "--csv"]) == 2
    assert "2 output formats: json, csv" in capsys.readouterr().err


def test_progress_is_silent_off_a_terminal(capsys) -> None:
    with output.progress("replay", total=2) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_a_mistyped_command_is_told_the_nearest(capsys) -> None:
    assert main(["pln"]) == 2
    assert capsys.readouterr().err.splitlines()[0].endswith("Did you mean 'plan'?")
    assert main(["zzzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err
