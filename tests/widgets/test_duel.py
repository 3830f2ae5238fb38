"""A hand-made cut plays against the planner's candidates under the same rules."""

from __future__ import annotations

import pytest

from qwisp.errors import QwispError
from qwisp.widgets.duel import duel
from qwisp.widgets.lab_state import LabState
from qwisp.widgets.scenario import Scenario


def test_both_sides_are_replays_of_the_same_requests() -> None:
    state = LabState(Scenario(layout="16384x4"))
    found = duel(state)
    mine = found.table.filter(found.table["by"] == "you").row(0, named=True)
    assert mine["lost"] == state.run_a.summary.lost
    assert mine["ttft_p95_s"] == found.your_ttft_p95_s == state.run_a.summary.ttft_s.p95
    planned = LabState(
        Scenario(layout=found.planned.text, context=str(found.planned.own_context_tokens or ""))
    )
    assert planned.run_a.summary.ttft_s.p95 == found.planned_ttft_p95_s
    assert found.finding.startswith("the planner wins: your 16384x4")


def test_the_planners_own_cut_is_a_draw_and_a_worse_one_loses() -> None:
    best = duel(LabState(Scenario(layout="whole_window:1"))).planned
    context = str(best.own_context_tokens or "")
    same = duel(LabState(Scenario(layout=best.text, context=context)))
    assert same.finding.startswith("a draw")
    assert same.table.row(0, named=True)["lost"] == same.table["lost"].min()


def test_a_cut_that_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(QwispError):
        duel(LabState(Scenario(layout="65536x9999")))
