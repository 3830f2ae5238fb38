"""The page of a plan: every candidate in the table, infeasible ones by their bytes."""

from __future__ import annotations

import re

import polars as pl

from qwisp.report import plan_page, to_html
from qwisp.units import GIB

RAN = {
    "layout": "16384x11",
    "feasible": True,
    "bytes": 11 * GIB,
    "requests": 100,
    "finished": 97,
    "refused": 2,
    "failed": 0,
    "cancelled": 1,
    "truncated": 3,
    "moves": 4,
    "pauses": 5,
    "waits_by_binding": {"no free session large enough": 12},
    "ttft_s": {"n": 97, "p50": 1.25, "p95": 9.5, "p99": 20.0},
    "e2e_s": {"n": 97, "p50": 5.0, "p95": 60.0, "p99": 90.0},
    "verdict": "stable",
}
TOO_BIG = {**dict.fromkeys(RAN), "layout": "whole_window:9", "feasible": False, "bytes": 40 * GIB}
DOCUMENT = {
    "schema": 1,
    "model": "m<script>",
    "machine": "box",
    "trace": "agents",
    "memory_bytes": 12 * GIB,
    "offered": {"load": 30.0, "capacity": 1.0, "ratio": 30.0},
    "rate": 0.04,
    "verdict": "overloaded",
    "why": "needs 30 such machines",
    "best": "16384x11",
    "candidates": [RAN, TOO_BIG],
}


def html(**changes: object) -> str:
    spans = {"id": [1], "slot": [0], "phase": ["decode"], "begin_s": [0.0], "end_s": [1.0]}
    load = {
        "time_s": [0.0, 1.0],
        "waiting": [3, 0],
        "allocated_bytes": [5.0, 5.0],
        "held_bytes": [3.0, 3.0],
        "used_bytes": [1.0, 2.0],
    }
    page = plan_page(
        {**DOCUMENT, **changes},
        memory=pl.DataFrame({"term": ["weights", "sessions"], "bytes": [GIB, 11 * GIB]}),
        segments=pl.DataFrame(spans),
        load=pl.DataFrame(load),
        command="qwisp plan",
        stamp=[("machine", "this one")],
    )
    return to_html(page)


def cells(text: str, title: str = "Candidates") -> list[list[str]]:
    table = text[text.index(title) :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_every_candidate_stands_in_the_table_with_its_figures() -> None:
    head, ran, too_big = cells(html())
    assert len(head) == len(ran) == len(too_big)
    shown = dict(zip(head, ran, strict=True))
    assert shown["verdict"] == "stable, recommended"
    assert shown["finished"] == "97"
    assert shown["truncated"] == "3"
    assert shown["TTFT p95 (s)"] == "9.5"
    waits = cells(html(), "Requests that waited")
    assert waits == [["layout", "no free session large enough"], ["16384x11", "12"]]


def test_a_layout_that_does_not_fit_shows_its_bytes_and_no_figures() -> None:
    head, _, too_big = cells(html())
    shown = dict(zip(head, too_big, strict=True))
    assert shown["bytes"] == "40.00 GiB"
    assert shown["verdict"] == "does not fit"
    assert shown["finished"] == "-"


def test_the_page_has_verdict_five_charts_and_no_markup_from_names() -> None:
    text = html()
    assert text.index("overloaded") < text.index("needs 30 such machines") < text.index("<table")
    assert text.count("<figure>") == 5
    assert "<script>" not in text


def test_a_burst_has_no_load_ratio_and_nothing_may_be_recommended() -> None:
    text = html(offered={"load": None, "capacity": 1.0, "ratio": None}, best=None)
    assert "a burst: all at once" in text
    assert "recommended" not in text


def test_a_plan_without_any_finished_request_still_has_a_page() -> None:
    none = {**RAN, "finished": 0, "ttft_s": None, "e2e_s": None, "waits_by_binding": {}}
    assert "no request was answered" in html(candidates=[none])
