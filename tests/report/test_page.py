"""The report stands alone, says the verdict first and lets no name become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from qwisp import charts
from qwisp.errors import BadInput
from qwisp.report import Figure, Heading, Page, Table, to_html, write_report

EVIL = "<script>alert('x')</script>&\"<img src=x onerror=alert(1)>"


def page(name: str = "16384x11", *, num_marks: int = 3) -> Page:
    spans = pl.DataFrame(
        {
            "id": list(range(num_marks)),
            "slot": [0] * num_marks,
            "phase": ["decode"] * num_marks,
            "begin_s": [float(i) for i in range(num_marks)],
            "end_s": [i + 0.5 for i in range(num_marks)],
        }
    )
    waits = pl.DataFrame({"layout": [name], "quantile": ["p95"], "ttft_s": [1.0]})
    return Page(
        title=f"Plan for {name}",
        verdict=f"stable {name}",
        why=f"{name} finishes",
        command=f"qwisp plan --model {name}",
        facts=[(name, name)],
        tables=[
            Table(
                title=name,
                columns=[Heading(title=name), Heading(title="n", is_number=True)],
                rows=[[name, "1"]],
            )
        ],
        figures=[
            Figure(chart=charts.sessions_over_time(spans, sessions=[name]), caption=name),
            Figure(chart=charts.ttft_by_candidate(waits)),
        ],
        stamp=[(name, name)],
    )


class _Tags(HTMLParser):
    """Collects tags and attributes as a browser would find them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def tags(html: str) -> _Tags:
    parser = _Tags()
    parser.feed(html)
    return parser


@pytest.mark.parametrize("num_marks", [3, 2000], ids=["as SVG", "as a picture"])
def test_no_name_becomes_markup(num_marks: int) -> None:
    evil, tame = (tags(to_html(page(name, num_marks=num_marks))) for name in (EVIL, "a name"))
    assert "script" not in evil.tags
    assert evil.tags.count("img") == tame.tags.count("img") == (1 if num_marks > 3 else 0)
    assert not [name for name, _ in evil.attributes if name.startswith("on")]


def test_the_page_loads_nothing() -> None:
    html = to_html(page(num_marks=2000))
    sources = [v for k, v in tags(html).attributes if k in {"src", "href", "data", "srcset"}]
    assert sources
    assert all(source.startswith("data:image/png") for source in sources)
    assert "default-src 'none'" in html
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\"'\s<>]+", html)) <= namespaces


def test_the_verdict_comes_before_the_table_and_the_charts() -> None:
    html = to_html(page())
    order = [html.index(text) for text in ("stable 16384x11", "<table", "<figure", "qwisp plan")]
    assert order == sorted(order)


def test_a_report_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    for name in ("first", "second"):
        size = write_report(page(name), path)
        assert size == path.stat().st_size
    assert "second" in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        write_report(page(), tmp_path)
