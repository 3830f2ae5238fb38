"""The life of one request: its decisions in order, what it waited for, what would have helped."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from qwisp.cost.model import PS_PER_S
from qwisp.errors import BadInput
from qwisp.scheduling.contract import LogEntry
from qwisp.sim.record import RequestRecord
from qwisp.sim.run import Run
from qwisp.widgets.moment import BETWEEN_ROUNDS, moments

LOOKS = 12  # times at which a wait is looked into, and once more right before its end


class Event(NamedTuple):
    """One line of a life: seconds from the first arrival, a word, a sentence with the numbers."""

    at_s: float
    kind: str
    text: str


def life(run: Run, request_id: int) -> tuple[Event, ...]:
    """Return what happened to a request, in order. Raises `BadInput` for an id not in the run.

    Decisions come from the scheduler's log. Each reason for a wait is the scheduler's own answer,
    asked of a fresh replay of the same facts at several times of that wait; equal resources in a
    row are told once, with the numbers right before the wait changed.
    """
    record = run.executor.records.get(request_id)
    if record is None:
        ids = sorted(run.executor.records)
        known = f"from {ids[0]} to {ids[-1]}" if ids else "none"
        raise BadInput(f"request {request_id} is not in this run", f"ask for an id: {known}")
    entries = [entry for entry in run.log if entry.id == request_id and entry.kind != "wait"]
    times = _Times(run, record)
    events = [_event(run, record, entry, times.of(entry)) for entry in entries]
    events += _waits(run, record, [times.of(e) for e in entries if e.kind == "pause"])
    order = {kind: rank for rank, kind in enumerate(_ORDER)}
    return tuple(sorted(events, key=lambda event: (event.at_s, order.get(event.kind, 9))))


_ORDER = ("arrive", "refused", "pause", "wait", "admit")  # of what happens at one time


class _Times:
    """Seconds of log entries. A decision counts from the start of its round."""

    def __init__(self, run: Run, record: RequestRecord) -> None:
        table = run.executor.rounds.columns()
        self._index, self._begin_ps = (table[name].tolist() for name in ("index", "begin_ps"))
        self._known_ps = {
            "arrive": record.arrival_ps,
            "refused": record.arrival_ps,
            "admit": record.admitted_ps,
            "decode": record.first_ps,
            record.outcome: record.end_ps,
        }

    def of(self, entry: LogEntry) -> float:
        if entry.kind in self._known_ps:
            return self._known_ps[entry.kind] / PS_PER_S
        row = bisect_right(self._index, entry.round) - 1
        return self._begin_ps[row] / PS_PER_S


def _event(run: Run, record: RequestRecord, entry: LogEntry, at_s: float) -> Event:
    came_s = record.arrival_ps / PS_PER_S
    kind, what = entry.kind, entry.what
    if kind == "arrive":
        limit = f"at most {what.max_new:,} new ones" if what.max_new else "no maximum named"
        return Event(at_s, kind, f"arrives: {what.prompt_tokens:,} prompt tokens, {limit}")
    if kind == "refused":
        return Event(at_s, kind, f"refused: {what.reason}; {what.counter_offer}")
    if kind == "decode":
        return Event(at_s, "first token", f"first token, {at_s - came_s:,.1f} s after it came")
    if kind == "pause":
        return Event(at_s, kind, f"pauses in {_session(run, what.slot)}")
    verbs = {"admit": "starts in", "move": "moves to", "resume": "resumes in"}
    if kind in verbs:
        after = f" after {at_s - came_s:,.1f} s in the line" if kind == "admit" else ""
        return Event(at_s, kind, f"{verbs[kind]} {_session(run, what.slot)}{after}")
    cut = ", cut by its maximum" if record.truncated else ""
    return Event(
        at_s,
        kind,
        f"{kind} ({record.reason}): {record.produced:,} tokens in {at_s - came_s:,.1f} s{cut}",
    )


def _session(run: Run, slot: int) -> str:
    if run.layout.kind == "per_request":
        return f"lane {slot + 1}"
    return f"session {slot + 1} of {run.layout.contexts[slot]:,} tokens"


def _waits(run: Run, record: RequestRecord, pauses_s: list[float]) -> list[Event]:
    """Ask why at several times from arrival to admission, and at each pause."""
    begin_ps = record.arrival_ps
    end_ps = record.admitted_ps if record.admitted_ps >= 0 else record.end_ps
    looks = range(begin_ps, end_ps, max(1, (end_ps - begin_ps) // LOOKS))
    line = sorted({*looks, end_ps - 1} if end_ps > begin_ps else ())
    found: list[Event] = []
    resources: list[str] = []
    times_s = [*(at_ps / PS_PER_S for at_ps in line), *pauses_s]
    for moment in moments(run, times_s, only=record.id):
        if not moment.waits:
            continue
        (wait,) = moment.waits
        event = Event(moment.at_s, "wait", f"waits for {wait.resource}: {wait.detail}")
        if resources and resources[-1] == wait.resource and wait.state == "waiting":
            event = event._replace(at_s=found[-1].at_s)
            found[-1] = event
        else:
            found.append(event)
        resources.append(wait.resource)
    # The rest of a round is worth a line only to a request that waited for nothing else.
    real = [event for event in found if BETWEEN_ROUNDS not in event.text]
    return real or found
