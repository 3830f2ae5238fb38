"""The scheduler lab on a real screen: in JupyterLab, and as a page opened from a file."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from qwisp.widgets.lab_state import LabState
from qwisp.widgets.moment import moments
from qwisp.widgets.scenario import Scenario
from qwisp.widgets.twin import save_html

ROOT = Path(__file__).resolve().parents[2]
OUTLINED = 'path[stroke="#000"][stroke-width="1.5"]'
pytestmark = pytest.mark.browser

OPENED = """() => {
    const app = window.jupyterapp, here = app && app.shell && app.shell.currentWidget;
    return here && here.context && here.context.isReady && here.sessionContext.session !== null;
}"""
RUN_ALL = """async () => {
    const here = window.jupyterapp.shell.currentWidget;
    await here.sessionContext.ready;
    await here.sessionContext.session.kernel.info;
    await window.jupyterapp.commands.execute("notebook:run-all-cells");
    return here.content.widgets.filter((cell) => cell.model.type === "code").map((cell) =>
        [cell.model.executionCount, cell.model.outputs.toJSON().filter(
            (o) => o.output_type === "error").map((o) => o.ename + ": " + o.evalue)]);
}"""


def _shot(page, name: str) -> None:
    """Keep a picture where `QWISP_SCREENSHOTS` names a folder."""
    if folder := os.environ.get("QWISP_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_the_notebook_runs_and_the_time_slider_moves_label_marks_and_rows(watch, jupyter) -> None:
    address, root = jupyter
    name = "04_scheduler_lab.ipynb"
    shutil.copy(ROOT / "notebooks" / name, root / name)
    page = watch.page
    page.goto(address.format(name))
    page.wait_for_function(OPENED, timeout=60_000)
    cells = page.evaluate(RUN_ALL)
    assert all(count and not errors for count, errors in cells), cells

    label = page.locator(".jupyter-widgets b", has_text="sessions hold a stream")
    rows = page.locator(".jupyter-widgets table", has_text="waits for").first.locator("tbody tr")
    scenario = page.locator(".widget-text", has_text="scenario").locator("input")
    label.wait_for()
    page.locator(OUTLINED).first.wait_for(state="attached")
    before = (label.inner_text(), rows.count(), page.locator(OUTLINED).count())
    _shot(page, "lab_before")

    handle = page.locator(".widget-slider", has_text="time (s)").locator(".noUi-handle")
    handle.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    # The slider ends where eight steps lead; label, table and chart follow it there.
    state = LabState.from_string(_settled(page, scenario))
    page.wait_for_function(
        "([was]) => ![...document.querySelectorAll('.jupyter-widgets b')]"
        ".some((b) => b.innerText === was)",
        arg=[before[0]],
    )
    now = {policy: state.at(policy=policy) for policy in state.runs}
    assert label.inner_text() == state.finding()
    assert rows.count() == sum(len(moment.waits) for moment in now.values())
    streams = sum(len(moment.streams) for moment in now.values())
    page.wait_for_function(
        f"([n]) => document.querySelectorAll('{OUTLINED}').length === n", arg=[streams]
    )
    after = (label.inner_text(), rows.count(), streams)
    assert all(old != new for old, new in zip(before, after, strict=True)), (before, after)
    _shot(page, "lab_after")

    page.locator(OUTLINED).first.click(force=True)
    life = page.locator(".jupyter-widgets table", has_text="prompt tokens, at most")
    life.wait_for()
    assert "first token" in life.inner_text() or "starts in" in life.inner_text()
    _shot(page, "lab_clicked")
    assert watch.errors == []
    assert watch.away == set()


def _settled(page, field) -> str:
    """Return the text of a field once it has stopped changing."""
    text, same = field.input_value(), 0
    for _ in range(100):
        page.wait_for_timeout(100)
        same = same + 1 if field.input_value() == text else 0
        text = field.input_value()
        if same == 8:
            break
    return text


def test_the_page_from_a_file_moves_with_its_slider_and_loads_nothing(watch, tmp_path) -> None:
    state = LabState(Scenario(layout_b="4096x12,16384x2"), at_s=9800.0)
    path = save_html(state, tmp_path / "lab.html", num_times=60)
    assert path.stat().st_size < 1.5e6
    page = watch.page
    page.goto(path.as_uri())
    page.locator("#chart svg").wait_for()
    slider = page.locator("#time")

    def at(index: int) -> float:
        slider.evaluate(
            "(s, i) => { s.value = i; s.dispatchEvent(new Event('input', {bubbles: true})); }",
            index,
        )
        return round(state.span_s * index / 59, 3)

    seen = set()
    for index in (20, 19, 45):
        at_s = at(index)
        now = [moments(run, [at_s])[0] for run in state.runs.values()]
        findings = [f"{p}: {moment.finding}" for p, moment in zip("AB", now, strict=True)]
        assert page.locator("#finding").inner_text() == "\n".join(findings)
        rows = page.locator("#waits tr").count()
        assert rows == min(12, sum(len(moment.waits) for moment in now))
        marks = page.locator(OUTLINED).count()
        assert marks == sum(len(moment.streams) for moment in now)
        seen.add((rows, marks))
    assert len(seen) == 3
    at(20)
    _shot(page, "twin")
    assert watch.errors == []
    assert watch.away == set()


def test_a_link_to_the_page_names_a_time_and_says_when_it_means_another_lab(
    watch, tmp_path
) -> None:
    state = LabState(Scenario(layout="16384x8"), at_s=9000.0)
    path = save_html(state, tmp_path / "lab.html", num_times=30)
    page = watch.page
    page.goto(f"{path.as_uri()}#{state.to_string()}")
    clock = page.locator("#clock").inner_text()
    seconds = float(re.sub(r"[^0-9.]", "", clock))
    assert abs(seconds - 9000.0) <= state.span_s / 29 / 2
    assert page.locator("#other").is_hidden()
    page.goto("about:blank")
    page.goto(f"{path.as_uri()}#{LabState().to_string()}")
    assert page.locator("#other").is_visible()
    assert watch.errors == []
