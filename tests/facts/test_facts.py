"""Recorded facts, replayed: the same decisions; and any changed fact is seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from random import Random

import pytest

from qwisp.cost import load_cost
from qwisp.errors import BadInput, BadTrace, CheckFailed, QwispError
from qwisp.facts.file import (
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactRecord,
    FactsHeader,
    FailRecord,
    StopRecord,
    facts_lines,
    parse_facts,
    write_facts,
)
from qwisp.facts.header import READ_KEYS, header_of, recorded_layout, recorded_settings
from qwisp.facts.record import Recorded, facts_of
from qwisp.facts.replay import replay_facts
from qwisp.scheduling.contract import Ask, Move, Resume, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty, Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.testing import RowBytes, ScriptedRequest, ToyEngine

SETTINGS = Settings(
    grow_tokens=4, step_tokens=3, chunk_tokens=4, budget_tokens=8, order="first_fit"
)
SIZE = RowBytes()
LAYOUT = parse_layout(
    "24x3,48", size=SIZE, memory_bytes=1, model_context_tokens=96, own_context_tokens=96
)


def run_engine() -> tuple[Recorded, Scheduler]:
    """A run with moves, pauses, resumes, cancels, stops, drafts, late stops and failures."""
    rng = Random(7)
    asks = [
        ScriptedRequest(
            number,
            rng.randint(1, 20),
            rng.randint(3, 60),
            rng.choice([None, None, rng.randint(2, 60)]),
            arrives=number * 3,
            cancelled=number * 3 + 14 if number in (4, 11) else None,
        )
        for number in range(16)
    ]
    asks.append(ScriptedRequest(16, 500, 5, arrives=20))  # refused
    space = RowSpace(LAYOUT, SIZE)
    engine = ToyEngine(asks, space.num_rows, yields=lambda _: rng.randint(1, 3), reads_late=True)
    failed: set[type] = set()

    def fails(round: Round) -> list[int]:
        for position, op in enumerate(round.ops):
            if type(op) in (Move, Resume) and type(op) not in failed and round.index > 20:
                failed.add(type(op))
                return [position]
        return []

    clock = iter(range(10**6))
    recorded = Recorded(Faulty(engine, fails), lambda: next(clock) / 1000)
    scheduler = Scheduler(space, SETTINGS)
    drive(scheduler, recorded)
    return recorded, scheduler


@pytest.fixture(scope="module")
def run() -> tuple[FactsHeader, tuple[FactRecord, ...], Scheduler]:
    recorded, scheduler = run_engine()
    return header_of(LAYOUT, SETTINGS, SIZE, log=scheduler.log), facts_of(recorded), scheduler


def test_the_run_holds_every_kind_of_fact_and_of_decision(run: tuple) -> None:
    _, records, scheduler = run
    kinds = Counter(type(record) for record in records)
    for kind in (AskRecord, CancelRecord, StopRecord, FailRecord, ExtraRecord):
        assert kinds[kind] >= 2, kinds
    assert any(r.tokens < 0 for r in records if isinstance(r, ExtraRecord)), "a late stop"
    found = Counter(entry.kind for entry in scheduler.log)
    assert all(found[kind] >= 2 for kind in ("move", "pause", "resume", "cancelled", "failed"))
    assert found["refused"] == 1
    assert {e.what.reason for e in scheduler.log if e.kind == "finished"} == {"stop", "length"}


def test_a_fresh_scheduler_decides_the_same_on_the_facts_alone(run: tuple, tmp_path) -> None:
    header, records, scheduler = run
    write_facts(tmp_path / "run.jsonl", header, records)
    replay = replay_facts(tmp_path / "run.jsonl")
    assert replay.records == records
    assert list(replay.log) == scheduler.log
    assert replay.scheduler.counts == scheduler.counts
    assert replay.equal is True
    replay.require_equal()
    replay.require_equal(scheduler.log)


def test_the_simulator_decides_the_same_and_says_how_long_it_would_have_taken(run: tuple) -> None:
    header, records, scheduler = run
    cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
    replay = replay_facts((header, records), cost=cost)
    replay.require_equal(scheduler.log)
    ended = replay.clock.records
    assert {i: r.outcome for i, r in ended.items()} == {
        e.id: e.kind for e in scheduler.log if e.kind in scheduler.counts
    }
    tokens = {e.id: e.what.num_tokens for e in scheduler.log if e.kind in ("finished", "cancelled")}
    assert {i: ended[i].produced for i in tokens} == tokens
    assert replay.clock.now_ps > 0


@pytest.mark.parametrize("layout", ["60x2,100", "whole_window:2", "fixed_arena:90", "per_request"])
@pytest.mark.parametrize("wrap", [Stepwise, lambda inner: inner])
def test_a_simulated_run_replays_equal_and_in_the_same_time(layout: str, wrap) -> None:
    rng, size = Random(layout), RowBytes(1, 10)
    found = parse_layout(layout, size=size, memory_bytes=400, model_context_tokens=200)
    cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
    settings = Settings(grow_tokens=8, chunk_tokens=16, chunk_rule="ceil", budget_tokens=32)
    asks = [
        (i * 10**11, Ask(i, rng.randint(1, 90), rng.choice([None, 40])), rng.randint(1, 99))
        for i in range(40)
    ]
    cancels = [(i * 10**11 + 10**12, i) for i in range(0, 40, 6)]
    inner = CostExecutor(asks, cost, size, cancels)
    recorded = Recorded(wrap(inner), lambda: inner.now_ps / 1e12)
    scheduler = Scheduler(RowSpace(found, size), settings)
    drive(scheduler, recorded)
    header = header_of(found, settings, size, log=scheduler.log)
    replay = replay_facts((header, facts_of(recorded)), cost=cost, size=size)
    replay.require_equal(scheduler.log)
    busy_ps = sum(row[2] - row[1] for row in inner.rounds.rows)
    assert replay.clock.now_ps == busy_ps


def mutations(record: FactRecord) -> Iterator[FactRecord]:
    """Yield the record changed in each thing that counts."""
    yield record._replace(round=record.round + 1)
    if record.round:
        yield record._replace(round=record.round - 1)
    match record:
        case AskRecord():
            yield record._replace(prompt_tokens=record.prompt_tokens + 1)
            yield record._replace(max_new=(record.max_new or 10) + 1)
            yield record._replace(id=record.id + 100)
        case CancelRecord() | StopRecord():
            yield record._replace(id=(record.id + 1) % 16)
        case FailRecord():
            yield record._replace(reason=record.reason + "!")
            yield record._replace(op="Pause")
            yield record._replace(id=(record.id + 1) % 16)
            yield record._replace(op=None, id=None, position=99)
        case ExtraRecord():
            yield record._replace(tokens=record.tokens + 1)
            yield record._replace(tokens=record.tokens - 1)


def is_noticed(header: FactsHeader, records: list[FactRecord]) -> bool:
    """Whether the replay raises a clear error or its log differs."""
    try:
        text = "".join(facts_lines(header, sorted(records, key=lambda record: record.round)))
        replay_facts(parse_facts(text.encode())).require_equal()
    except QwispError as error:
        return bool(error.what and error.todo)
    return False


def test_every_single_changed_fact_is_noticed(run: tuple) -> None:
    header, records, _ = run
    missed = []
    tried: Counter[type] = Counter()
    for number, record in enumerate(records):
        for changed in mutations(record):
            if isinstance(record, ExtraRecord) and changed.round != record.round:
                continue  # tokens a round earlier or later need not change a decision
            tried[type(record)] += 1
            if not is_noticed(header, [*records[:number], changed, *records[number + 1 :]]):
                missed.append((record, changed))
    assert missed == []
    assert len(tried) == 5


def test_every_single_missing_fact_is_noticed(run: tuple) -> None:
    header, records, _ = run
    kept = [
        n for n in range(len(records)) if not is_noticed(header, [*records[:n], *records[n + 1 :]])
    ]
    assert [records[n] for n in kept] == []


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 4},
        {"C": 8},
        {"order": "fcfs"},
        {"layout": "24x2,48,48"},
        {"W": 3},
        {"grow": 5},
        {"step_tokens": 4},
        {"gen_cap": 12},
        {"chunk_rule": "ceil"},
        {"context": 95},
    ],
)
def test_every_changed_setting_is_noticed(run: tuple, change: dict[str, object]) -> None:
    header, records, _ = run
    lines = list(facts_lines(header, records))
    lines[0] = json.dumps(json.loads(lines[0]) | change) + "\n"
    with pytest.raises(QwispError):
        replay_facts(parse_facts("".join(lines).encode())).require_equal()


def replay_of(*records: FactRecord, layout: str = "40", **header: object):
    extra = {"context": 64, "model_context": 64} | header
    head = FactsHeader(layout, 2, 8, 64, "fcfs", tuple(sorted(extra.items())))
    return replay_facts((head, records))


ASK = AskRecord(0, 0, 1, 8, 20)


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([ASK._replace(round=3)], "round 3 request 1 arrives, but before it nothing was left"),
        ([ASK, CancelRecord(50, 0, 1)], "round 50 1 is cancelled, but before it nothing was left"),
        ([ASK, StopRecord(50, 0, 1)], "round 50 request 1 stops, but that round never ran"),
        ([ASK, StopRecord(3, 0, 2)], "round 3 request 2 stops, but was not decoding"),
        ([ASK, ExtraRecord(3, 0, 2, 1)], "round 3 request 2 yields tokens, but was not decoding"),
        ([ASK, ExtraRecord(3, 0, 1, 1)], "yielded 5 tokens in 4 steps of at most 1"),
        ([ASK, ExtraRecord(3, 0, 1, -5)], "yielded -1 tokens in 4 steps"),
        ([ASK, FailRecord(3, 0, 1, "x")], "round 3 operation 1 fails, but is none of its 1"),
        ([ASK, FailRecord(3, 0, None, "x", "Move", 1)], "round 3 Move of request 1 fails, but"),
        ([ASK, FailRecord(90, 0, 0, "x")], "round 90 operation 0 fails, but that round never ran"),
    ],
)
def test_facts_that_cannot_belong_to_the_rounds_are_named(records: list, what: str) -> None:
    with pytest.raises(BadInput, match="the facts cannot be replayed") as caught:
        replay_of(*records)
    assert what in caught.value.what


def test_a_header_says_what_is_missing_or_wrong() -> None:
    with pytest.raises(BadInput, match="where bytes decide"):
        replay_of(ASK, layout="per_request:1000")
    replay = replay_of(ASK, layout="per_request:1000", row_bytes=10)
    assert replay.scheduler.space.max_rows == 65
    for key, value in (("grow", "many"), ("grow", -1), ("chunk_rule", 3), ("context", 1.5)):
        with pytest.raises(BadTrace, match=f"line 1, column {key}") as caught:
            replay_of(ASK, **{key: value})
        assert (caught.value.line, caught.value.column) == (1, key)
    with pytest.raises(BadTrace, match="at most 4096 lanes"):
        replay_facts((FactsHeader("40", 10**15, 8, 64, "fcfs"), ()))
    with pytest.raises(BadInput, match="order 'none' is not known"):
        replay_facts((FactsHeader("40", 2, 8, 64, "none"), ()))


@pytest.mark.parametrize("key", [*sorted(READ_KEYS), "grow_tokens"])
def test_the_keys_called_read_are_those_whose_value_matters(key: str) -> None:
    """A value of no kind is an error under each of them, and nothing under any other."""
    header = {"row_bytes": 10, "prefix_bytes": 1} | {key: [key]}
    if key == "grow_tokens":
        assert replay_of(ASK, layout="per_request:1000", **header).log
        return
    with pytest.raises(BadTrace, match=f"line 1, column {key}: "):
        replay_of(ASK, layout="per_request:1000", **header)


def test_every_setting_of_a_run_comes_back_from_its_header() -> None:
    """All of them other than the default, so that one left out would be seen."""
    settings = Settings(
        order="sjf",
        max_passed=3,
        step_tokens=2,
        grow_tokens=5,
        gen_cap_tokens=7,
        budget_tokens=0,
        chunk_tokens=64,
        chunk_rule="ceil",
        prefix_bytes=9,
        prefix_step_tokens=11,
        boundary_tokens=13,
        min_shared_tokens=17,
    )
    default = asdict(Settings())
    assert all(value != default[name] for name, value in asdict(settings).items())
    header = header_of(LAYOUT, settings, SIZE)
    assert recorded_settings(header) == settings
    assert dict(header.extra).keys() <= READ_KEYS


@pytest.mark.parametrize("contexts", [(96, 24, 24), (96,)])
def test_sessions_that_a_header_cannot_say_are_refused_not_written_wrong(contexts: tuple) -> None:
    """Their text read back would add the engine's own session, or another margin."""
    for layout in (Layout.sessions(*contexts), Layout.sessions(*contexts, margin_rows=32)):
        with pytest.raises(BadInput, match="a header cannot say the sessions 96"):
            header_of(layout, SETTINGS, SIZE)
    said = Layout.sessions(96, 24, 24, margin_rows=32, text="24x2")
    assert recorded_layout(header_of(said, SETTINGS, SIZE), SIZE)[0] == said


def test_a_header_spells_its_keys_as_files_always_did() -> None:
    """Written by the version before settings were spelled in one place."""
    header = header_of(LAYOUT, replace(SETTINGS, prefix_bytes=500), SIZE)
    assert next(iter(facts_lines(header, []))) == (
        '{"schema": "qwisp-facts-1", "layout": "24x3,48", "W": 5, "C": 4, "budget": 8, '
        '"order": "first_fit", "boundary": 512, "chunk_rule": "aligned", "context": 96, '
        '"cut": "smallest_fit", "fixed_bytes": 0, "gen_cap": 16384, "grow": 4, "max_passed": 64, '
        '"min_shared": 1024, "model_context": 96, "prefix_bytes": 500, "prefix_step": 512, '
        '"row_bytes": 1, "step_tokens": 3}\n'
    )


def test_without_a_digest_there_is_nothing_to_compare_with() -> None:
    replay = replay_of(ASK)
    assert replay.equal is None
    with pytest.raises(BadInput, match="name no log to compare with"):
        replay.require_equal()
    with pytest.raises(CheckFailed, match="decides differently: 4 entries against 3"):
        replay.require_equal(replay.log[:-1])


def test_an_id_used_twice_cannot_be_written_down() -> None:
    layout: Layout = LAYOUT
    asks = [ScriptedRequest(1, 4, 3), ScriptedRequest(1, 4, 3, arrives=9)]
    space = RowSpace(layout, SIZE)
    recorded = Recorded(ToyEngine(asks, space.num_rows))
    drive(Scheduler(space, Settings()), recorded)
    with pytest.raises(BadInput, match="request 1 arrived twice"):
        facts_of(recorded)


def test_fifty_thousand_fuzzed_lines_replay_or_say_why_not(run: tuple) -> None:
    """Keys gone, values swapped, near, huge, negative or of other kinds; broken bytes."""
    header, records, _ = run
    rng = Random("facts")
    lines = [json.loads(line) for line in facts_lines(header, records[:16])]
    values = [None, -1, 10**9, 10**17, 2**62, 10**30, 0.5, "", "x", [], [1], True, "ceil"]
    keys = sorted({key for line in lines for key in line})
    outcomes: Counter[str] = Counter()
    num_fuzzed = 0
    while num_fuzzed < 50_000:
        text = [dict(line) for line in lines]
        for number in rng.sample(range(len(lines)), rng.choice([1, 1, 2, 8])):
            num_fuzzed += 1
            line, kind = text[number], rng.randint(0, 5)
            key = rng.choice([rng.choice(list(line)), rng.choice(keys)])
            if kind == 0:
                line.pop(key, None)
            elif kind == 1:
                line[key] = rng.choice(values)
            elif kind == 2:
                text[number] = dict(rng.choice(lines))
            else:
                line[key] = rng.choice(lines).get(key, rng.randint(0, 99))
        data = "\n".join(json.dumps(line) for line in text)
        if rng.random() < 0.1:
            cut = rng.randint(0, len(data))
            data = data[:cut] + rng.choice(["{", "}", "\x00", "é", "\n\n", '"']) + data[cut + 1 :]
        try:
            replay_facts(parse_facts(data.encode()))
            outcomes["replayed"] += 1
        except QwispError as error:
            outcomes[type(error).__name__] += 1
    assert outcomes["replayed"] >= 1000, outcomes
    assert outcomes["BadTrace"] >= 1000, outcomes
    assert outcomes["BadInput"] >= 300, outcomes
