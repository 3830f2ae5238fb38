"""Prefixes in rounds: restored on admission, captured on the way, waited for when under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

import pytest

from qwisp.scheduling.contract import Capture, Drop, End, Executor, Grant, Restore, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty, Stepwise, Wrapper
from qwisp.testing import Played, ScriptedRequest, play, sessions, solo_reply

STEP = 64
LANES = sessions(1600, 1600, 1600, 1600)
_fresh = count(10**6)


def settings(**changes: object) -> Settings:
    fixed: dict[str, object] = {
        "budget_tokens": 256,
        "chunk_tokens": 64,
        "prefix_bytes": 15000,
        "prefix_step_tokens": STEP,
        "boundary_tokens": 1,
        "min_shared_tokens": 128,
    }
    return Settings(**{**fixed, **changes})


def keys(prompt_tokens: int, shared_tokens: int = 0, family: int = 1) -> tuple[int, ...]:
    """Keys of a prompt whose first `shared_tokens` are those of its family."""
    num_shared = shared_tokens // STEP
    own = next(_fresh) * 1000
    return tuple(
        family * 100 + at if at < num_shared else own + at
        for at in range(-(-prompt_tokens // STEP))
    )


class Watch:
    """Keeps every round that reaches the engine."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def __call__(self, inner: Executor) -> Executor:
        watch = self

        class Kept(Wrapper):
            def run(self, round: Round):
                watch.rounds.append(round)
                return super().run(round)

        return Kept(inner)

    def ops(self, *kinds: type) -> list:
        return [op for round in self.rounds for op in round.ops if isinstance(op, kinds)]


def played(
    asks: Iterable[ScriptedRequest],
    config: Settings,
    wrap: Callable[[Executor], Executor] | None = None,
) -> tuple[Played, Watch]:
    """Play, compare every reply with the same request alone, and return what the engine saw."""
    asks, watch = list(asks), Watch()
    result = play(LANES, asks, config, wrap=lambda e: watch(wrap(e) if wrap else e))
    for ask in asks:
        reply = result.engine.replies[ask.id]
        assert reply == solo_reply(ask, len(reply), STEP)
    return result, watch


def prefilled_tokens(watch: Watch) -> int:
    """Prompt tokens computed, of a run in single steps."""
    return sum(op.num_tokens for op in watch.ops(Grant))


@pytest.mark.parametrize("budget", [0, 64, 256, 8000])
@pytest.mark.parametrize("rule", ["aligned", "ceil"])
def test_of_three_equal_prompts_two_wait_for_the_blob_of_the_first(budget: int, rule: str) -> None:
    prefix = keys(800, 800)
    asks = [ScriptedRequest(i, 800, 5, prefix=prefix) for i in range(3)]
    result, watch = played(asks, settings(budget_tokens=budget, chunk_rule=rule))
    log = {(entry.kind, entry.id): entry for entry in result.scheduler.log}
    assert [(op.id, op.num_tokens) for op in watch.ops(Capture)] == [(0, 799)]
    captured = log["capture", 0].round
    assert log["wait", 1].detail == ("prefix in flight",)
    for waiting in (1, 2):
        assert log["admit", waiting].round == captured + 1
        assert log["restore", waiting].what.num_tokens == 799
    assert [(op.id, op.key) for op in watch.ops(Restore)] == [(1, prefix[-1]), (2, prefix[-1])]


@pytest.mark.parametrize("order", ["fcfs", "first_fit", "sjf"])
def test_a_fan_out_pays_for_its_shared_prefix_once(order: str) -> None:
    asks = [ScriptedRequest(i, 960, 4, prefix=keys(960, 640)) for i in range(6)]
    with_store, watch = played(asks, settings(order=order), wrap=Stepwise)
    _, without = played(asks, settings(order=order, prefix_bytes=0), wrap=Stepwise)
    assert prefilled_tokens(without) == 6 * 959
    assert prefilled_tokens(watch) == 959 + 5 * (959 - 640)
    restored = sorted((op.id, op.num_tokens) for op in watch.ops(Restore))
    assert restored == [(i, 640) for i in range(1, 6)]
    assert with_store.scheduler.counts["finished"] == 6


def test_a_conversation_starts_where_its_last_turn_ended_and_replaces_it() -> None:
    first = keys(512)
    second = first + keys(512)
    third = second + keys(512)
    asks = [
        ScriptedRequest(0, 512, 3, prefix=first),
        ScriptedRequest(1, 1024, 3, arrives=60, prefix=second),
        ScriptedRequest(2, 1536, 3, arrives=120, prefix=third),
    ]
    result, watch = played(asks, settings(boundary_tokens=STEP))
    assert [(op.id, op.num_tokens) for op in watch.ops(Restore)] == [(1, 448), (2, 960)]
    assert [op.key for op in watch.ops(Drop)][:1] == [first[6]]
    assert second[14] in [op.key for op in watch.ops(Drop)]
    store = result.scheduler.prefixes.store
    assert third[22] in store, "the last turn is kept"
    assert first[6] not in store
    assert second[14] not in store


@pytest.mark.parametrize("boundary", [1, 64, 192])
def test_captures_lie_on_the_boundary_grid_and_leave_the_last_token(boundary: int) -> None:
    asks = [
        ScriptedRequest(i, 900 + i, 3, arrives=3 * i, prefix=keys(900 + i, 640)) for i in range(5)
    ]
    _, watch = played(asks, settings(boundary_tokens=boundary))
    captures = watch.ops(Capture)
    assert captures
    for op in captures:
        assert op.num_tokens % boundary == 0
        assert 128 <= op.num_tokens < asks[op.id].prompt_tokens


def test_blobs_serve_from_the_round_after_their_capture_until_they_are_dropped() -> None:
    asks = [
        ScriptedRequest(i, 800, 4, arrives=3 * i, prefix=keys(800, 512, family=i * i % 5))
        for i in range(60)
    ]
    _, watch = played(asks, settings(prefix_bytes=4000))
    held: set[int] = set()
    drops = 0
    for round in watch.rounds:
        gone = {op.key for op in round.ops if isinstance(op, Drop)}
        drops += len(gone)
        assert gone <= held
        held -= gone
        for op in round.ops:
            if isinstance(op, Restore):
                assert op.key in held
        held |= {op.key for op in round.ops if isinstance(op, Capture)}
    assert drops >= 10
    assert len(watch.ops(Restore)) >= 10


class FailKind:
    """Fails the n-th operation of a kind."""

    def __init__(self, kind: type, nth: int = 0) -> None:
        self.kind, self.left, self.victim = kind, nth, None

    def __call__(self, round: Round) -> list[int]:
        for at, op in enumerate(round.ops):
            if isinstance(op, self.kind):
                if self.left == 0 and self.victim is None:
                    self.victim = op.id
                    return [at]
                self.left -= 1
        return []


@pytest.mark.parametrize("kind", [Capture, Restore, Grant, End])
@pytest.mark.parametrize("nth", range(4))
def test_a_waiter_goes_on_when_the_capture_it_waits_for_never_happens(kind: type, nth: int) -> None:
    prefix = keys(800, 800)
    asks = [ScriptedRequest(i, 800, 5, prefix=prefix) for i in range(5)]
    fault = FailKind(kind, nth)
    result, _ = played(asks, settings(), wrap=lambda engine: Faulty(engine, fault))
    counts = result.scheduler.counts
    lost = 1 if fault.victim is not None and kind is not End else 0
    assert (counts["finished"], counts["failed"]) == (5 - lost, lost)
    result.scheduler.check()


def test_a_waiter_goes_on_when_the_prefill_it_waits_for_is_cancelled() -> None:
    prefix = keys(800, 800)
    asks = [
        ScriptedRequest(0, 800, 5, cancelled=2, prefix=prefix),
        ScriptedRequest(1, 800, 5, prefix=prefix),
    ]
    result, watch = played(asks, settings(budget_tokens=64))
    assert result.scheduler.counts["finished"] == 1
    assert watch.ops(Restore) == []
    log = {(entry.kind, entry.id): entry.round for entry in result.scheduler.log}
    assert log["admit", 1] == log["cancelled", 0] == 2


def test_nobody_waits_for_a_blob_that_the_store_could_not_hold() -> None:
    prefix = keys(800, 800)
    asks = [ScriptedRequest(i, 800, 5, prefix=prefix) for i in range(3)]
    result, watch = played(asks, settings(prefix_bytes=900))
    assert watch.ops(Capture, Restore) == []
    assert {entry.round for entry in result.scheduler.log if entry.kind == "admit"} == {0}


@pytest.mark.parametrize(("shared", "waits"), [(256, False), (320, True), (640, True)])
def test_a_prompt_waits_only_for_a_prefix_worth_capturing(shared: int, waits: bool) -> None:
    # 256 tokens beyond what is restored make a capture worth while, on a grid of 64.
    asks = [
        ScriptedRequest(0, 1400, 3, prefix=keys(1400, shared)),
        ScriptedRequest(1, 900, 3, prefix=keys(900, shared)),
    ]
    result, _ = played(asks, settings(min_shared_tokens=300))
    kinds = [(entry.kind, entry.id) for entry in result.scheduler.log]
    assert (("wait", 1) in kinds) == waits


def test_a_prompt_waits_for_a_far_capture_only_if_it_shares_more_than_is_left() -> None:
    # The first prompt has passed all that the second shares: there is nothing to wait for.
    asks = [
        ScriptedRequest(0, 1400, 3, prefix=keys(1400, 384)),
        ScriptedRequest(1, 900, 3, arrives=3, prefix=keys(900, 384)),
    ]
    result, watch = played(asks, settings())
    admitted = {entry.id: entry.round for entry in result.scheduler.log if entry.kind == "admit"}
    assert admitted[1] == 3
    assert watch.ops(Restore) == []
