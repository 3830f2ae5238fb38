"""Random rounds in which prompts share so much that they wait for each other's captures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from qwisp.scheduling import prefix_store
from qwisp.scheduling.prefix_store import PrefixStore

from . import test_scheduler_machine
from .books import SIZE
from .test_scheduler_machine import Machine, random_settings


@pytest.fixture(autouse=True)
def small_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts here have at most 90 tokens: a capture is worth while for two more."""
    monkeypatch.setattr(prefix_store, "MIN_GAIN_TOKENS", 2)
    monkeypatch.setattr(test_scheduler_machine, "random_prefix", mostly_shared)


def mostly_shared(rng: Random, number: int, prompt_tokens: int, step: int) -> tuple[int, ...]:
    """Keys of which all but a few are those of a family."""
    num_keys = prompt_tokens // step
    shared = max(0, num_keys - rng.choice([0, 0, 1, 3]))
    family = 1000 * rng.randint(1, 6)
    own = 10_000 * (number + 1)
    return tuple((family if at < shared else own) + at for at in range(num_keys))


def machine(rng: Random) -> Machine:
    """A machine whose settings always have a store."""
    found = random_settings(rng)
    found = replace(
        found, prefix_bytes=rng.choice([300, 900, 4000]), budget_tokens=rng.choice([0, 1, 4, 8])
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_scheduler_machine, "random_settings", lambda _: found)
        return Machine(rng)


class Ledger:
    """Counts the bytes of both tiers by hand, from what is reserved, abandoned and dropped."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.peak: Counter[str] = Counter()
        held: dict[tuple[int, int], tuple[str, int]] = {}
        reserve, abandon, drop = PrefixStore.reserve, PrefixStore.abandon, PrefixStore.drop

        def counted(store: PrefixStore, key: int, num_tokens: int, tier: str, pinned: set) -> tuple:
            entry, victims = reserve(store, key, num_tokens, tier, pinned)
            if entry is not None:
                held[id(store), key] = tier, SIZE.bytes(num_tokens)
                for name, limit in store.limits.items():
                    mine = (b for (i, _), (t, b) in held.items() if i == id(store) and t == name)
                    total = sum(mine)
                    assert total <= limit, f"the {name} tier holds {total} of {limit} bytes"
                    self.peak[name] = max(self.peak[name], total)
            return entry, victims

        def forget(real):
            def forgotten(store: PrefixStore, entry) -> None:
                del held[id(store), entry.key]
                real(store, entry)

            return forgotten

        patch.setattr(PrefixStore, "reserve", counted)
        patch.setattr(PrefixStore, "abandon", forget(abandon))
        patch.setattr(PrefixStore, "drop", forget(drop))
        self.held = held


@pytest.mark.parametrize("seed", range(3))
def test_random_rounds_with_shared_prefixes_keep_every_invariant(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(monkeypatch)
    rng, done = Random(1000 + seed), 0
    kinds: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    while done < 8000:
        ledger.held.clear()
        found = machine(rng)
        found.episode(80)
        done += found.num_rounds
        kinds += found.books.kinds
        waits.update(entry.what.resource for entry in found.scheduler.log if entry.kind == "wait")
    for kind in ("Restore", "Capture", "Drop"):
        assert kinds[kind] >= 100, kinds
    assert waits["prefix in flight"] >= 4, waits
    assert ledger.peak["shared"] > 0
    assert ledger.peak["conversation"] > 0
