"""How a command speaks: one table in four formats on stdout, progress on stderr.

```python
@click.command()
@output.formats
def command(output_format: str) -> None:
    output.emit(rows, COLUMNS, output_format, document={"schema": 1, "rows": rows})
```

`rows` are mappings: `frame.to_dicts()` for a polars frame.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from qwisp.errors import BadInput

Row = Mapping[str, Any]
_FORMATS = ("json", "csv", "markdown")


class Column(NamedTuple):
    """A column: the row's `key`, the `title` people read, and how a value is printed.

    Columns of numbers are aligned right whatever `show` makes of them.
    """

    key: str
    title: str = ""
    show: Callable[[Any], str] | None = None

    def text(self, row: Row) -> str:
        """Return the printed cell; an absent value is a dash."""
        value = row.get(self.key)
        if value is None:
            return "-"
        return printable(self.show(value) if self.show else _show(value))


def formats(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, `--csv`, `--markdown`; the function receives `output_format`."""
    for name in reversed(_FORMATS):
        function = click.option(
            f"--{name}",
            f"as_{name}",
            is_flag=True,
            expose_value=False,
            callback=_choose,
            help=f"Print {name}.",
        )(function)
    return function


def _choose(ctx: click.Context, option: click.Parameter, is_asked: bool) -> None:
    taken = ctx.params.setdefault("output_format", "table")
    if is_asked and taken != "table":
        both = sorted((taken, option.name.removeprefix("as_")), key=_FORMATS.index)
        raise BadInput(f"2 output formats: {', '.join(both)}", "ask for one")
    if is_asked:
        ctx.params["output_format"] = option.name.removeprefix("as_")


def emit(
    rows: Sequence[Row],
    columns: Sequence[Column],
    output_format: str = "table",
    *,
    document: object = None,
    title: str = "",
) -> None:
    """Print `rows` once, in the asked format; `--json` prints `document` (default: the rows)."""
    match output_format:
        case "json":
            text = to_json(document if document is not None else {"schema": 1, "rows": list(rows)})
        case "csv":
            text = to_csv(rows, columns)
        case "markdown":
            text = to_markdown(rows, columns)
        case _:
            text = to_table(rows, columns, title=title)
    click.echo(text)


def emit_answer(
    finding: str,
    setting: str,
    *,
    tables: Sequence[tuple[Sequence[Row], Sequence[Column]]],
    lines: Sequence[str],
    output_format: str,
    document: object,
    csv: tuple[Sequence[Row], Sequence[Column]],
) -> None:
    """Print an answer of more than one table: what was found and for what, tables, then lines."""
    match output_format:
        case "json":
            text = to_json(document)
        case "csv":
            text = to_csv(*csv)
        case "markdown":
            listed = "\n".join(f"- {line}" for line in lines)
            shown = [to_markdown(*table) for table in tables]
            text = "\n\n".join([f"**{finding}**", setting, *shown, listed])
        case _:
            text = "\n".join([finding, setting, *[to_table(*table) for table in tables], *lines])
    click.echo(text)


def note(text: str, output_format: str = "table") -> None:
    """Print a line for people: on stdout beside a table, on stderr beside a document."""
    click.echo(printable(text), err=output_format != "table")


def to_json(document: object) -> str:
    """Return one JSON document; NaN and infinity are refused, because JSON has none."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


def to_csv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return CSV with raw values under the keys, whose names carry the units.

    >>> to_csv([{"name": "a,b", "size_bytes": 3}], [Column("name"), Column("size_bytes")])
    'name,size_bytes\\n"a,b",3'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    writer.writerows([[row.get(column.key) for column in columns] for row in rows])
    return text.getvalue().rstrip("\n")


def to_markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return a Markdown table with the cells people read.

    >>> print(to_markdown([{"name": "a|b", "n": 3}], [Column("name"), Column("n", "count")]))
    | name | count |
    |:---|---:|
    | a\\|b | 3 |
    """
    lines = [[column.title or column.key for column in columns]]
    lines += [[column.text(row) for column in columns] for row in rows]
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]
    rule = "".join("|---:" if _is_number(rows, column) else "|:---" for column in columns) + "|"
    return "\n".join([body[0], rule, *body[1:]])


def to_table(rows: Sequence[Row], columns: Sequence[Column], *, title: str = "") -> str:
    """Return an aligned table as wide as the terminal, or as its text when there is none."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for column in columns:
        justify = "right" if _is_number(rows, column) else "left"
        table.add_column(Text(column.title or column.key), justify=justify)
    for row in rows:
        table.add_row(*[Text(column.text(row)) for column in columns])
    width = max(80, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 1000
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines if line.strip())


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs; yields `advance(steps)`. Silent off a terminal."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def printable(text: str) -> str:
    """Return text that cannot steer a terminal: control characters become their escapes.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _is_number(rows: Sequence[Row], column: Column) -> bool:
    values = [value for row in rows if (value := row.get(column.key)) is not None]
    return bool(values) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
