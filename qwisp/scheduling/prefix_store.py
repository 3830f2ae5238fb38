"""Stored prefixes in two tiers, by bytes: what is worth storing, what is kept, what a prompt hits.

*Shared* entries (a third of the budget) serve many prompts, *conversation* entries (two thirds) the
next turn of one. Recurrent state cannot be cut back, so only exact positions restore.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from qwisp.errors import SchedulerBug
from qwisp.scheduling.layout import SessionSize

MIN_GAIN_TOKENS = 256


class PrefixPlan(NamedTuple):
    """Restore `restore` tokens; capture a shared entry at `capture`; save the conversation?"""

    restore: int
    capture: int | None
    save: bool


def plan_prefix(
    prompt_tokens: int,
    hit_tokens: int,
    lcp_tokens: int,
    *,
    min_shared_tokens: int = 1024,
    boundary_tokens: int = 1,
) -> PrefixPlan:
    """Return what to do with a prompt whose longest stored prefix has `hit_tokens`.

    `lcp_tokens` is what it shares with other prompts. A capture lies on the boundary grid, is worth
    `min_shared_tokens` in all and 256 beyond the restore; a hit never covers the whole prompt,
    because the last token must decode.

    >>> plan_prefix(12_000, 0, 9_000)
    PrefixPlan(restore=0, capture=9000, save=True)
    >>> plan_prefix(9_000, 8_999, 8_999)
    PrefixPlan(restore=8999, capture=None, save=False)
    """
    last = prompt_tokens - 1
    restore = min(hit_tokens, last)
    capture: int | None = on_grid(min(lcp_tokens, last), boundary_tokens)
    if capture < min_shared_tokens or capture < restore + MIN_GAIN_TOKENS:
        capture = None
    return PrefixPlan(restore, capture, prompt_tokens >= min_shared_tokens and restore < last)


def on_grid(tokens: int, boundary_tokens: int) -> int:
    """Return `tokens` rounded down to a boundary at which state may be kept."""
    return tokens // boundary_tokens * boundary_tokens


def common_tokens(
    ours: tuple[int, ...], our_tokens: int, theirs: tuple[int, ...], their_tokens: int, step: int
) -> int:
    """Return the tokens two prompts share, as far as their chained keys tell.

    Key i stands for all tokens up to `(i + 1) * step`, or the end of the prompt: equal keys mean
    equal beginnings, so the longest common run is found by bisection.
    """
    most = min(len(ours), len(theirs))
    num_equal = leading_keys(most, lambda i: ours[i] == theirs[i])
    return min(num_equal * step, our_tokens, their_tokens)


def leading_keys(most: int, is_shared: Callable[[int], bool]) -> int:
    """Return how many of the first `most` chained keys are shared: keys 0, 1, ... up to some one.

    >>> leading_keys(5, lambda i: i < 3)
    3
    """
    return bisect_left(range(most), True, key=lambda i: not is_shared(i))


Tier = Literal["shared", "conversation"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The first `num_tokens` tokens of any prompt that has `key` where they end."""

    key: int
    num_tokens: int
    num_bytes: int
    tier: Tier


class PrefixStore:
    """Least recently used entries leave first; a tier never holds more than its bytes."""

    def __init__(self, budget_bytes: int, size: SessionSize) -> None:
        shared = budget_bytes // 3
        self.limits: dict[Tier, int] = {"shared": shared, "conversation": budget_bytes - shared}
        self.used: dict[Tier, int] = {"shared": 0, "conversation": 0}
        self._tiers: dict[Tier, OrderedDict[int, Entry]] = {
            "shared": OrderedDict(),
            "conversation": OrderedDict(),
        }
        self._entries: dict[int, Entry] = {}  # of both tiers
        self._pending: dict[int, Entry] = {}
        self._bytes = lru_cache(2**14)(size.bytes)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._pending or key in self._entries

    def holds(self, entry: Entry) -> bool:
        """Whether this very entry can still be restored from."""
        return self._entries.get(entry.key) is entry

    def hit(self, prefix: tuple[int, ...], prompt_tokens: int) -> Entry | None:
        """Return the longest entry that the prompt begins with and does not end with."""
        for entry in filter(None, map(self._entries.get, reversed(prefix))):
            if entry.num_tokens < prompt_tokens:
                return entry
        return None

    def touch(self, entry: Entry) -> None:
        """Count the entry as just used."""
        self._tiers[entry.tier].move_to_end(entry.key)

    def could_hold(self, num_tokens: int, tier: Tier) -> bool:
        """Whether an entry of so many tokens fits its tier at all."""
        return self._bytes(num_tokens) <= self.limits[tier]

    def reserve(
        self, key: int, num_tokens: int, tier: Tier, pinned: frozenset[int] | set[int]
    ) -> tuple[Entry | None, list[Entry]]:
        """Return (the entry to capture now, entries to drop for it); (None, []) without room.

        The bytes count from now on; `commit` makes the entry usable, `abandon` returns its bytes.
        Entries in `pinned` are being restored and stay.
        """
        num_bytes = self._bytes(num_tokens)
        limit = self.limits[tier]
        if key in self or num_bytes > limit:
            return None, []
        victims: list[Entry] = []
        free = limit - self.used[tier]
        for entry in self._tiers[tier].values():
            if free >= num_bytes:
                break
            if entry.key not in pinned:
                victims.append(entry)
                free += entry.num_bytes
        if free < num_bytes:
            return None, []
        for victim in victims:
            self.drop(victim)
        entry = Entry(key, num_tokens, num_bytes, tier)
        self.used[tier] += num_bytes
        self._pending[key] = entry
        return entry, victims

    def commit(self, entry: Entry) -> None:
        """The capture happened: the entry may be restored from."""
        del self._pending[entry.key]
        self._entries[entry.key] = self._tiers[entry.tier][entry.key] = entry

    def abandon(self, entry: Entry) -> None:
        """The capture did not happen."""
        del self._pending[entry.key]
        self.used[entry.tier] -= entry.num_bytes

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        del self._entries[entry.key], self._tiers[entry.tier][entry.key]
        self.used[entry.tier] -= entry.num_bytes

    def check(self) -> None:
        """Raise `SchedulerBug` unless every tier holds what it counts, within its bytes."""
        for name, tier in self._tiers.items():
            pending = [entry for entry in self._pending.values() if entry.tier == name]
            held = sum(entry.num_bytes for entry in (*tier.values(), *pending))
            if not held == self.used[name] <= self.limits[name]:
                raise SchedulerBug(
                    f"the {name} tier holds {held} bytes, counts {self.used[name]} and may hold "
                    f"{self.limits[name]}"
                )
            if any(self._entries.get(key) is not entry for key, entry in tier.items()):
                raise SchedulerBug(f"an entry of the {name} tier cannot be found")
        if len(self._entries) != sum(map(len, self._tiers.values())):
            raise SchedulerBug("an entry is in no tier, or in two")
        if self._pending.keys() & self._entries.keys():
            raise SchedulerBug("a blob is captured that is already held")
