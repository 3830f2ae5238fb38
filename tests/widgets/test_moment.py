"""The state at any time agrees with the run's own frames, and its reasons are the scheduler's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Ask, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.snapshot import Snapshot
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.replay import arrivals, replay
from qwisp.sim.run import Run
from qwisp.widgets import moment as module
from qwisp.widgets.life import life
from qwisp.widgets.moment import BETWEEN_ROUNDS, moments
from qwisp.widgets.question import replay_scenario
from qwisp.widgets.scenario import Scenario

LAYOUTS = ("65536,32768x3,16384x11", "4096x12,16384x2", "whole_window:2", "per_request")


@pytest.fixture(params=LAYOUTS)
def run(request) -> Run:
    return replay_scenario(Scenario(layout=request.param))[0]


def _counts(found: module.Moment) -> tuple[int, ...]:
    states = Counter(stream.state for stream in found.streams)
    return (found.num_waiting, states["prefill"], states["decode"], states["paused"])


def test_the_state_at_any_time_is_that_of_the_load_frame(run: Run) -> None:
    load = run.load
    changes = load["time_s"].to_numpy()
    times = np.linspace(0.0, changes[-1] * 1.01, 300)
    seen = set()
    for found in moments(run, times.tolist()):
        row = load.row(int(np.searchsorted(changes, found.at_s, side="right")) - 1, named=True)
        expected = tuple(row[name] for name in ("waiting", "prefill", "decode", "paused"))
        assert _counts(found) == expected, found.at_s
        seen.add(expected)
    assert len(seen) > 10  # the times really differ


def test_streams_sit_where_the_segments_say(run: Run) -> None:
    at_s = float(run.load.sort("waiting")["time_s"][-1]) + 0.5
    (found,) = moments(run, [at_s])
    segments = run.segments
    here = segments.filter((segments["begin_s"] <= at_s) & (segments["end_s"] > at_s))
    assert here.height > 0
    assert {(s.id, s.place.slot, s.state) for s in found.streams} == set(
        here.select("id", "slot", "phase").iter_rows()
    )


def test_times_may_come_in_any_order_and_twice(run: Run) -> None:
    times = [9000.0, 100.0, 9000.0, 0.0]
    found = moments(run, times)
    assert [f.at_s for f in found] == times
    assert found[0] == found[2]
    assert found == [moments(run, [at_s])[0] for at_s in times]


def test_after_the_end_nothing_is_there(run: Run) -> None:
    (found,) = moments(run, [run.summary.makespan_s + 1.0])
    assert found.streams == ()
    assert found.num_waiting == 0
    assert found.finding.endswith("nothing waits")


def test_every_reason_comes_from_the_scheduler(run: Run, monkeypatch) -> None:
    asked = []
    real = Scheduler.why

    def why(self: Scheduler, request_id: int):
        answer = real(self, request_id)
        asked.append(answer)
        return answer

    monkeypatch.setattr(Scheduler, "why", why)
    at_s = float(run.load.sort("waiting")["time_s"][-1]) + 0.5
    (found,) = moments(run, [at_s])
    told = [wait for wait in found.waits if wait.resource != BETWEEN_ROUNDS]
    assert told
    assert [(w.id, w.resource, w.detail) for w in told] == [tuple(answer) for answer in asked]


def test_the_change_named_for_the_head_of_the_line_admits_it() -> None:
    run = replay_scenario(Scenario(layout="4096x12,16384x2"))[0]
    at_s = float(run.load.sort("waiting")["time_s"][-1]) + 0.5
    head = moments(run, [at_s])[0].waits[0]
    assert head.resource == "no free session large enough"
    tokens = int(head.detail.split("a free session of ")[1].split()[0].replace(",", ""))
    largest = max(run.layout.contexts)
    record = run.executor.records[head.id]
    for context, starts in ((tokens, True), (tokens - 1, False)):
        layout = replay_scenario(Scenario(layout=f"{largest},{context}", context="4096"))[0].layout
        scheduler = Scheduler(RowSpace(layout, run.size), run.settings)
        # The largest session is taken by a request that needs it; the smallest is far too small.
        scheduler.submit(Ask(-1, largest - 8192 - 1, 8192))
        scheduler.submit(Ask(head.id, record.prompt_tokens, record.ask.max_new))
        admitted = {op.id for op in scheduler.plan().ops if type(op).__name__ == "Admit"}
        assert (head.id in admitted) == starts, context


def test_a_life_tells_arrival_wait_pause_and_end_in_order() -> None:
    run = replay_scenario(Scenario(layout="4096x12,16384x2"))[0]
    frame = run.requests
    row = frame.filter((frame["pauses"] > 0) & frame["waited_for"].is_not_null())
    row = row.row(0, named=True)
    events = life(run, row["id"])
    kinds = [event.kind for event in events]
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert kinds[0] == "arrive"
    assert kinds[-1] == "finished"
    assert kinds.count("pause") == row["pauses"]
    assert kinds.count("move") + kinds.count("resume") == row["moves"]  # a resume moves too
    admitted = next(event for event in events if event.kind == "admit")
    assert admitted.at_s == pytest.approx(row["arrival_s"] + row["queue_s"])  # float subtraction
    before = [event for event in events if event.kind == "wait" and event.at_s < admitted.at_s]
    assert before
    assert any(row["waited_for"] in event.text for event in before)
    paused = events[kinds.index("pause") + 1]
    assert paused.kind == "wait"
    assert "tokens or more resumes it" in paused.text


def test_a_refused_life_says_what_would_have_fitted() -> None:
    run = replay_scenario(Scenario(layout="4096x12,16384x2"))[0]
    refused = run.requests.filter(run.requests["outcome"] == "refused")["id"][0]
    events = life(run, refused)
    assert [event.kind for event in events] == ["arrive", "refused"]
    assert "would fit" in events[1].text


def test_a_life_tells_the_wait_of_a_request_far_back_in_the_line(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 2)
    run = replay_scenario(Scenario(layout="whole_window:2"))[0]
    at_s = float(run.load.sort("waiting")["time_s"][-1]) + 0.5
    (found,) = moments(run, [at_s])
    assert len(found.waits) == 2 < found.num_waiting
    last = max(r["id"] for r in run.requests.to_dicts() if r["arrival_s"] <= at_s)
    texts = [event.text for event in life(run, last) if event.kind == "wait"]
    assert any(text.startswith("waits for order: ") for text in texts)


def test_an_unknown_request_is_named() -> None:
    run = replay_scenario(Scenario())[0]
    with pytest.raises(BadInput, match="request 99999 is not in this run"):
        life(run, 99999)


class _Look(Stepwise):
    """Runs single rounds and keeps the scheduler's snapshot during each that covers a time."""

    def __init__(self, inner: CostExecutor, scheduler: Scheduler, times_ps: list[int]) -> None:
        super().__init__(inner)
        self.seen: dict[int, Snapshot] = {}
        self._scheduler, self._times = scheduler, times_ps

    def run(self, round: Round) -> Outcome:
        begin_ps = self.inner.now_ps
        outcome = super().run(round)
        for at_ps in self._times:
            if begin_ps <= at_ps < self.inner.now_ps:
                self.seen[at_ps] = self._scheduler.snapshot()
        return outcome


def test_inside_a_repeated_round_the_state_is_that_of_single_steps() -> None:
    whole = replay_scenario(Scenario(layout="4096x12,16384x2"))[0]
    trace = replace(whole.trace, requests=whole.trace.requests[:20])
    run = replay(trace, whole.layout, whole.size, whole.cost, whole.settings)
    times_s = np.linspace(0.0, run.summary.makespan_s, 200).tolist()
    scheduler = Scheduler(RowSpace(run.layout, run.size), run.settings)
    inner = CostExecutor(arrivals(trace), run.cost, run.size)
    look = _Look(inner, scheduler, [round(at_s * 1e12) for at_s in times_s])
    drive(scheduler, look)
    assert len(look.seen) > 100  # the others are idle
    for found in moments(run, times_s):
        single = look.seen.get(round(found.at_s * 1e12))
        if single is not None:
            assert found.round == single.round
            assert [s.used_tokens for s in found.streams] == [s.used_tokens for s in single.streams]
