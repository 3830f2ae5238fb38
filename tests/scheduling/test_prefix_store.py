"""What is restored, captured and saved; two tiers by bytes; who leaves first."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from qwisp.errors import SchedulerBug
from qwisp.scheduling.layout import RowBytes
from qwisp.scheduling.prefix_store import PrefixStore, common_tokens, plan_prefix

SIZE = RowBytes(1, 10)  # a blob of n tokens takes n + 10 bytes


@pytest.mark.parametrize(
    ("prompt", "hit", "lcp", "plan"),
    [
        (9000, 0, 0, (0, None, True)),
        (12000, 0, 9000, (0, 9000, True)),
        (12000, 9000, 9000, (9000, None, True)),
        (4000, 0, 900, (0, None, True)),
        (12000, 8900, 9000, (8900, None, True)),
        (9000, 0, 9000, (0, 8999, True)),
        (800, 0, 0, (0, None, False)),
        (9000, 8999, 8999, (8999, None, False)),
    ],
)
def test_the_eight_plan_values(prompt: int, hit: int, lcp: int, plan: tuple) -> None:
    assert plan_prefix(prompt, hit, lcp) == plan


@pytest.mark.parametrize("boundary", [1, 64, 512])
def test_a_capture_rounds_down_to_the_boundary_and_keeps_its_worth(boundary: int) -> None:
    rng = Random(boundary)
    for _ in range(2000):
        prompt, lcp = rng.randint(1, 6000), rng.randint(0, 6000)
        hit = rng.randint(0, prompt)
        plan = plan_prefix(prompt, hit, min(lcp, prompt), boundary_tokens=boundary)
        assert plan.restore < prompt, "a hit never covers the whole prompt"
        if plan.capture is not None:
            assert plan.capture % boundary == 0
            assert max(1024, plan.restore + 256) <= plan.capture < prompt


def test_common_tokens_stop_at_the_first_other_key_and_at_the_shorter_prompt() -> None:
    assert common_tokens((1, 2, 3), 1400, (1, 2, 9), 1500, 512) == 1024
    assert common_tokens((1, 2, 3), 1400, (1, 2, 3), 1400, 512) == 1400
    assert common_tokens((1, 2), 700, (1, 2), 690, 512) == 690
    assert common_tokens((7,), 100, (8,), 100, 512) == 0
    assert common_tokens((), 100, (8,), 100, 512) == 0


def filled(budget_bytes: int, *entries: tuple[int, int, str]) -> PrefixStore:
    store = PrefixStore(budget_bytes, SIZE)
    for key, num_tokens, tier in entries:
        entry, _ = store.reserve(key, num_tokens, tier, set())
        assert entry is not None
        store.commit(entry)
        store.check()
    return store


def test_a_third_of_the_bytes_is_shared_and_two_thirds_are_conversations() -> None:
    assert PrefixStore(1000, SIZE).limits == {"shared": 333, "conversation": 667}


def test_the_longest_entry_that_leaves_a_token_is_hit() -> None:
    store = filled(3000, (1, 100, "shared"), (2, 200, "conversation"), (3, 300, "shared"))
    hit = store.hit((1, 2, 3), 301)
    assert hit is not None
    assert hit.num_tokens == 300
    hit = store.hit((1, 2, 3), 300)  # 300 would be the whole prompt
    assert hit is not None
    assert hit.num_tokens == 200
    assert store.hit((9, 8), 301) is None


def test_the_least_recently_used_of_the_same_tier_leaves_first() -> None:
    store = filled(
        990, (1, 100, "shared"), (2, 100, "shared"), (3, 100, "shared"), (9, 600, "conversation")
    )
    store.touch(store.hit((1,), 200))
    entry, victims = store.reserve(4, 150, "shared", set())
    assert entry is not None
    assert [victim.key for victim in victims] == [2, 3]
    store.check()
    assert 9 in store, "the other tier is left alone"


def test_what_is_being_restored_is_never_dropped_and_without_room_nothing_is() -> None:
    store = filled(330, (1, 40, "shared"), (2, 40, "shared"))
    assert store.reserve(3, 90, "shared", {1}) == (None, [])
    entry, victims = store.reserve(3, 50, "shared", {1})
    assert entry is not None
    assert [victim.key for victim in victims] == [2]


def test_a_blob_too_large_or_already_held_or_under_way_is_not_captured() -> None:
    store = filled(330, (1, 40, "shared"))
    assert store.reserve(2, 101, "shared", set()) == (None, [])
    assert store.reserve(1, 30, "conversation", set()) == (None, [])
    entry, _ = store.reserve(3, 20, "shared", set())
    assert store.reserve(3, 20, "shared", set()) == (None, [])
    assert store.hit((3,), 100) is None, "not there before the capture happened"
    store.abandon(entry)
    store.check()
    assert store.used == {"shared": 50, "conversation": 0}


def test_a_miscounted_store_is_found() -> None:
    store = filled(330, (1, 40, "shared"))
    store.used["shared"] += 1
    with pytest.raises(SchedulerBug, match="holds 50 bytes, counts 51"):
        store.check()


class PlainStore:
    """The same rules in the plainest words: a list a tier, everything summed each time."""

    def __init__(self, budget_bytes: int) -> None:
        self.limits = {"shared": budget_bytes // 3, "conversation": budget_bytes * 2 // 3}
        self.limits["conversation"] = budget_bytes - self.limits["shared"]
        self.tiers: dict[str, OrderedDict[int, int]] = {
            "shared": OrderedDict(),
            "conversation": OrderedDict(),
        }

    def capture(self, key: int, num_tokens: int, tier: str, pinned: set[int]) -> list[int] | None:
        num_bytes, held = SIZE.bytes(num_tokens), self.tiers[tier]
        if any(key in entries for entries in self.tiers.values()) or num_bytes > self.limits[tier]:
            return None
        stay = sum(SIZE.bytes(n) for k, n in held.items() if k in pinned)
        if stay + num_bytes > self.limits[tier]:
            return None
        victims = []
        while sum(map(SIZE.bytes, held.values())) + num_bytes > self.limits[tier]:
            victims.append(next(k for k in held if k not in pinned))
            del held[victims[-1]]
        held[key] = num_tokens
        return victims


@pytest.mark.parametrize("seed", range(20))
def test_random_captures_and_hits_equal_the_plain_rules(seed: int) -> None:
    rng = Random(seed)
    budget = rng.choice([60, 300, 2000])
    store, plain = PrefixStore(budget, SIZE), PlainStore(budget)
    for _ in range(1500):
        key, num_tokens = rng.randint(1, 40), rng.randint(1, 200)
        tier = rng.choice(["shared", "conversation"])
        pinned = {rng.randint(1, 40) for _ in range(rng.randint(0, 3))}
        if rng.random() < 0.5:
            entry, victims = store.reserve(key, num_tokens, tier, pinned)
            expected = plain.capture(key, num_tokens, tier, pinned)
            assert (entry is None) == (expected is None)
            assert [victim.key for victim in victims] == (expected or [])
            if entry is not None:
                store.commit(entry)
        else:
            prefix = tuple(rng.sample(range(1, 41), 5))
            entry = store.hit(prefix, num_tokens)
            tiers = [t for k in reversed(prefix) for t in plain.tiers.values() if k in t]
            keys = [k for k in reversed(prefix) for t in plain.tiers.values() if k in t]
            fitting = [k for k, t in zip(keys, tiers, strict=True) if t[k] < num_tokens]
            assert (entry.key if entry else None) == (fitting[0] if fitting else None)
            if entry is not None:
                store.touch(entry)
                plain.tiers[entry.tier].move_to_end(entry.key)
        store.check()
