"""Prefixes at their limits: each bound met, and missed by one token or one key."""

from __future__ import annotations

from itertools import product

import pytest

from qwisp.errors import SchedulerBug
from qwisp.scheduling import prefixes as prefixes_module
from qwisp.scheduling.contract import Admit, Ask, Capture, Drop, Outcome, Restore, Round
from qwisp.scheduling.lines import Prefills
from qwisp.scheduling.prefix_store import PrefixStore, common_tokens, on_grid, plan_prefix
from qwisp.scheduling.prefixes import Prefixes
from qwisp.scheduling.stream import Stream
from qwisp.scheduling.wrappers import Faulty
from qwisp.testing import RowBytes, ScriptedRequest

from .test_prefix_rounds import STEP, keys, played, settings

NOTHING = Round(0, (), (), 1, False)


@pytest.mark.parametrize(
    ("prompt", "hit", "lcp", "plan"),
    [
        (12000, 8744, 9000, (8744, 9000, True)),  # 256 more than is restored
        (12000, 8745, 9000, (8745, None, True)),
        (4000, 0, 1024, (0, 1024, True)),
        (4000, 0, 1023, (0, None, True)),
        (4000, 768, 1024, (768, 1024, True)),
        (4000, 769, 1024, (769, None, True)),
        (1025, 0, 1025, (0, 1024, True)),  # all but the last token
        (1024, 0, 1024, (0, None, True)),
        (1024, 0, 0, (0, None, True)),
        (1023, 0, 0, (0, None, False)),
        (9000, 8998, 0, (8998, None, True)),  # one token but the last is new
        (9000, 8999, 0, (8999, None, False)),
        (9000, 9000, 9000, (8999, None, False)),  # a hit leaves the last token
        (2, 1, 1, (1, None, False)),
        (1, 0, 0, (0, None, False)),
    ],
)
def test_plan_values_at_each_limit(prompt: int, hit: int, lcp: int, plan: tuple) -> None:
    assert plan_prefix(prompt, hit, lcp) == plan


@pytest.mark.parametrize(
    ("lcp", "hit", "boundary", "capture"),
    [
        (1151, 0, 64, 1088),
        (1152, 0, 64, 1152),
        (1500, 0, 512, 1024),
        (1023, 0, 512, None),
        (1087, 0, 1, 1087),
        (1300, 1024, 64, 1280),
        (1279, 1024, 64, None),  # 1216 is 192 more
        (3999, 0, 1000, 3000),
    ],
)
def test_captures_round_down_before_they_are_weighed(
    lcp: int, hit: int, boundary: int, capture: int | None
) -> None:
    assert plan_prefix(4000, hit, lcp, boundary_tokens=boundary).capture == capture
    assert on_grid(lcp, boundary) % boundary == 0


def test_a_smaller_worth_may_be_set() -> None:
    assert plan_prefix(900, 0, 300, min_shared_tokens=300) == (0, 300, True)
    assert plan_prefix(900, 0, 299, min_shared_tokens=300) == (0, None, True)
    assert plan_prefix(900, 0, 255, min_shared_tokens=10) == (0, None, True)  # 256 new at least
    assert plan_prefix(900, 0, 256, min_shared_tokens=10) == (0, 256, True)


def test_common_tokens_equal_a_comparison_key_by_key() -> None:
    for ours, theirs, equal in product(range(7), range(7), range(7)):
        one = tuple(range(ours))
        two = tuple(at if at < equal else 100 + at for at in range(theirs))
        shared = 0
        for left, right in zip(one, two, strict=False):
            shared += 10 * (left == right)
        for our_tokens, their_tokens in ((99, 99), (25, 99), (99, 31)):
            found = common_tokens(one, our_tokens, two, their_tokens, 10)
            assert found == min(shared, our_tokens, their_tokens)


# ---- the store ---------------------------------------------------------------------------------


def held(*entries: tuple[int, int, str], budget: int = 990) -> PrefixStore:
    store = PrefixStore(budget, RowBytes())
    for key, num_tokens, tier in entries:
        entry, _ = store.reserve(key, num_tokens, tier, set())
        store.commit(entry)
    return store


@pytest.mark.parametrize(("tier", "limit"), [("shared", 330), ("conversation", 660)])
def test_a_tier_takes_its_last_byte_and_not_one_more(tier: str, limit: int) -> None:
    store = held()
    assert store.could_hold(limit, tier)
    assert not store.could_hold(limit + 1, tier)
    assert store.reserve(1, limit + 1, tier, set()) == (None, [])
    entry, victims = store.reserve(1, limit - 100, tier, set())
    assert (entry.num_bytes, victims) == (limit - 100, [])
    store.commit(entry)
    second, victims = store.reserve(2, 100, tier, set())
    assert (second.num_bytes, victims) == (100, [])
    store.commit(second)
    _, victims = store.reserve(3, 1, tier, set())
    assert [victim.key for victim in victims] == [1]
    assert store.used[tier] == 101
    store.check()


def test_only_as_many_leave_as_must_oldest_first_and_pinned_ones_are_stepped_over() -> None:
    fill = [(key, 110, "shared") for key in (1, 2, 3)]
    assert [v.key for v in held(*fill).reserve(9, 110, "shared", set())[1]] == [1]
    assert [v.key for v in held(*fill).reserve(9, 111, "shared", set())[1]] == [1, 2]
    assert [v.key for v in held(*fill).reserve(9, 220, "shared", set())[1]] == [1, 2]
    assert [v.key for v in held(*fill).reserve(9, 220, "shared", {1})[1]] == [2, 3]
    assert held(*fill).reserve(9, 221, "shared", {1}) == (None, [])
    store = held(*fill)
    store.touch(store.hit((1,), 999))
    assert [v.key for v in store.reserve(9, 220, "shared", set())[1]] == [2, 3]


def test_a_capture_under_way_holds_its_bytes_and_is_no_victim() -> None:
    store = held((1, 130, "shared"))
    under_way, _ = store.reserve(2, 200, "shared", set())
    assert 2 in store
    assert store.hit((2,), 999) is None
    assert store.reserve(3, 131, "shared", set()) == (None, []), "only 1 could leave"
    assert 1 in store, "nothing left in vain"
    store.abandon(under_way)
    assert (2 in store, store.used["shared"], len(store)) == (False, 130, 1)
    store.check()


def test_an_entry_dropped_and_captured_again_is_another() -> None:
    store = held((1, 130, "shared"))
    old = store.hit((1,), 131)
    assert store.hit((1,), 130) is None
    store.drop(old)
    again, _ = store.reserve(1, 130, "shared", set())
    assert not store.holds(again), "not there yet"
    store.commit(again)
    assert (store.holds(old), store.holds(again)) == (False, True)


def lose_from_index(store: PrefixStore) -> None:
    del store._entries[1]


def lose_from_tier(store: PrefixStore) -> None:
    store._tiers["shared"].pop(1)
    store.used["shared"] -= 100


def capture_again(store: PrefixStore) -> None:
    store._pending[1] = store._entries[1]
    store.used["shared"] += 100


def overfill(store: PrefixStore) -> None:
    store.limits["shared"] = 99


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lose_from_index, "of the shared tier cannot be found"),
        (lose_from_tier, "in no tier, or in two"),
        (capture_again, "captured that is already held"),
        (overfill, "holds 100 bytes, counts 100 and may hold 99"),
    ],
)
def test_a_broken_store_is_found(harm, what: str) -> None:
    store = held((1, 100, "shared"))
    store.check()
    harm(store)
    with pytest.raises(SchedulerBug, match=what):
        store.check()


# ---- in rounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("arrives", "kept"), [(5, True), (6, False)])
def test_what_is_restored_in_a_round_is_not_dropped_for_a_capture_of_that_round(
    arrives: int, kept: bool
) -> None:
    """Conversations have 600 bytes. 0 leaves 511 in round 1; 2 would in round 5, in their place."""
    first = keys(512)
    asks = [
        ScriptedRequest(0, 512, 3, prefix=first),
        ScriptedRequest(2, 512, 3, arrives=4, prefix=keys(512)),
        ScriptedRequest(1, 1024, 3, arrives=arrives, prefix=first + keys(512)),
    ]
    _, watch = played(asks, settings(prefix_bytes=900))
    assert [(op.id, op.num_tokens) for op in watch.ops(Restore)] == ([(1, 511)] if kept else [])
    assert [op.key for op in watch.ops(Drop)] == ([] if kept else [first[7]])
    assert [(op.id, op.num_tokens) for op in watch.ops(Capture)] == (
        [(0, 511)] if kept else [(0, 511), (2, 511)]
    )


def test_what_was_restored_may_be_dropped_in_a_later_round() -> None:
    """Conversations have 600 bytes: 0 leaves 511, 1 restores them, 2 needs their place."""
    first = keys(512)
    asks = [
        ScriptedRequest(0, 512, 3, prefix=first),
        ScriptedRequest(1, 1024, 3, arrives=5, prefix=first + keys(512)),
        ScriptedRequest(2, 512, 3, arrives=30, prefix=keys(512)),
    ]
    _, watch = played(asks, settings(prefix_bytes=900))
    assert [(op.id, op.num_tokens) for op in watch.ops(Restore)] == [(1, 511)]
    assert [op.key for op in watch.ops(Drop)] == [first[7]]
    assert [(op.id, op.num_tokens) for op in watch.ops(Capture)] == [(0, 511), (2, 511)]


def test_a_capture_is_not_lost_with_the_failure_of_another_stream() -> None:
    """0 is captured in round 3, in which the admission of 2 fails; 1 restores in round 4."""
    prefix = keys(800, 800)
    asks = [
        ScriptedRequest(0, 800, 9, prefix=prefix),
        ScriptedRequest(1, 800, 5, prefix=prefix),
        ScriptedRequest(2, 1, 5, arrives=3),
    ]

    def fails(round) -> list[int]:
        return [at for at, op in enumerate(round.ops) if isinstance(op, Admit) and op.id == 2]

    config = settings(order="first_fit")
    result, _ = played(asks, config, wrap=lambda engine: Faulty(engine, fails))
    log = [
        (e.round, e.kind, e.id) for e in result.log if e.kind in ("capture", "failed", "restore")
    ]
    assert log == [(3, "capture", 0), (3, "failed", 2), (4, "restore", 1)]


def test_a_waiter_pays_for_itself_in_the_round_after_a_capture_was_lost() -> None:
    prefix = keys(800, 800)
    asks = [ScriptedRequest(i, 800, 9, prefix=prefix) for i in (0, 1)]

    def fails(round) -> list[int]:
        return [at for at, op in enumerate(round.ops) if isinstance(op, Capture) and op.id == 0]

    result, watch = played(asks, settings(), wrap=lambda engine: Faulty(engine, fails))
    log = [(e.round, e.kind, e.id) for e in result.log if e.kind in ("wait", "failed", "admit")]
    assert log == [(0, "admit", 0), (0, "wait", 1), (3, "failed", 0), (4, "admit", 1)]
    assert watch.ops(Restore) == []


@pytest.mark.parametrize(("arrives", "waits"), [(1, True), (2, False)])
def test_nobody_waits_for_a_capture_that_lies_behind(arrives: int, waits: bool) -> None:
    """Both share 320 tokens, and 256 are granted a round: known in round 1, passed in round 2."""
    asks = [
        ScriptedRequest(0, 1400, 3, prefix=keys(1400, 320)),
        ScriptedRequest(1, 900, 3, arrives=arrives, prefix=keys(900, 320)),
    ]
    result, _ = played(asks, settings())
    log = [(e.round, e.kind, e.id, *e.detail) for e in result.log if e.id == 1]
    assert ((1, "wait", 1, "prefix in flight") in log) == waits
    admits = [entry[0] for entry in log if entry[1] == "admit"]
    assert admits == [2]
    assert ((2, "restore", 1, 320) in log) == waits


@pytest.mark.parametrize(("arrives", "waits"), [(0, True), (1, False)])
def test_nobody_waits_for_a_capture_where_its_prefill_stands(arrives: int, waits: bool) -> None:
    """Both share 256 tokens, all of which round 0 grants: too late to stop there in round 1."""
    asks = [
        ScriptedRequest(0, 1400, 3, prefix=keys(1400, 256)),
        ScriptedRequest(1, 900, 3, arrives=arrives, prefix=keys(900, 256)),
    ]
    result, watch = played(asks, settings())
    admits = [e.round for e in result.log if (e.kind, e.id) == ("admit", 1)]
    assert admits == [1]
    assert ("wait" in [e.kind for e in result.log if e.id == 1]) == waits
    captured = [op.num_tokens for op in watch.ops(Capture) if op.id == 0]
    assert captured == ([256, 1399] if waits else [1399])


def test_a_turn_that_others_restore_in_this_round_is_not_replaced_by_its_successor() -> None:
    """1 and 2 continue the turn of 0 in one round, in which each ends and leaves its own."""
    first = keys(512)
    asks = [
        ScriptedRequest(0, 512, 3, prefix=first),
        *(ScriptedRequest(i, 576, 3, arrives=30, prefix=first + keys(64)) for i in (1, 2)),
    ]
    _, watch = played(asks, settings())
    (both,) = [r for r in watch.rounds if any(isinstance(op, Restore) for op in r.ops)]
    kinds = (Restore, Capture, Drop)
    assert [(type(op), op.id, op.num_tokens) for op in both.ops if isinstance(op, kinds)] == [
        (Restore, 1, 511),
        (Restore, 2, 511),
        (Capture, 1, 575),
        (Capture, 2, 575),
    ]
    assert watch.ops(Drop) == []


def fresh(number: int, prefix: tuple[int, ...], prompt: int = 960) -> Stream:
    stream = Stream(Ask(number, prompt, None, prefix), 9, prompt + 10, 0)
    stream.prefill_end = prompt - 1
    return stream


@pytest.mark.parametrize(("others", "stop"), [(0, 640), (1, 640), (3, 959)])
def test_prompts_are_remembered_for_two_generations_of_keys(
    others: int, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation ends with more than 20 keys, here every second prompt of 15."""
    monkeypatch.setattr(prefixes_module, "MAX_SEEN_KEYS", 20)
    config = settings()
    found = Prefixes(config, RowBytes(), Prefills(config))
    for number, prefix in enumerate([keys(960, 640), *(keys(960) for _ in range(others))]):
        found.see(fresh(number, prefix))
    late = fresh(99, keys(960, 640))
    found.see(late)
    assert found.admit(late) is None
    assert found.next_stop(late) == stop


def test_a_prompt_alone_shares_nothing_and_one_without_keys_captures_nothing() -> None:
    config = settings()
    found = Prefixes(config, RowBytes(), Prefills(config))
    alone, unknown = fresh(1, keys(960, 640)), fresh(2, ())
    for stream in (alone, unknown):
        found.see(stream)
        assert found.admit(stream) is None
    assert found.next_stop(alone) == 959
    assert found.next_stop(unknown) is None
    found.forget(alone)
    assert found.next_stop(alone) is None


@pytest.mark.parametrize(
    ("message_tokens", "stops"), [(0, [959]), (700, [700, 959]), (127, [959]), (2000, [959])]
)
def test_a_conversation_is_kept_at_its_end_and_its_last_message(
    message_tokens: int, stops: list[int]
) -> None:
    config = settings()
    found = Prefixes(config, RowBytes(), Prefills(config))
    stream = Stream(Ask(1, 960, None, keys(960), 0, message_tokens), 9, 970, 0)
    stream.prefill_end = 959
    found.see(stream)
    found.admit(stream)
    seen = []
    while (at := found.next_stop(stream)) is not None:
        drops, captures = found.capture(stream, at)
        assert drops == []
        seen += [(op.num_tokens, op.key) for op in captures]
    assert seen == [(at, stream.ask.prefix[-(-at // STEP) - 1]) for at in stops]
    assert found.settle(NOTHING, Outcome(1))
    assert not found.settle(NOTHING, Outcome(1)), "nothing was reached since"
    found.check()


@pytest.mark.parametrize(("position", "sound"), [(0, True), (959, True), (960, False)])
def test_a_capture_that_lies_behind_its_prefill_is_found(position: int, sound: bool) -> None:
    config = settings()
    prefills = Prefills(config)
    found = Prefixes(config, RowBytes(), prefills)
    stream = fresh(1, keys(960))
    found.admit(stream)
    with pytest.raises(SchedulerBug, match="can no longer be captured at 959"):
        found.check()  # it is in no prefill
    prefills.append(stream)
    stream.position = position
    if sound:
        found.check()
    else:
        with pytest.raises(SchedulerBug, match="can no longer be captured at 959"):
            found.check()
