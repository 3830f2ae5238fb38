"""A small covering array: every pair of values of any two factors occurs in some case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def covering_array(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return cases that cover all pairs; greedy and deterministic."""
    names = list(factors)
    missing = {
        ((a, x), (b, y)) for a, b in combinations(names, 2) for x in factors[a] for y in factors[b]
    }
    # Sorted, so that the array does not depend on the hashes of a process.
    order = sorted(missing, key=repr)
    cases = []
    while missing:
        first = next(pair for pair in order if pair in missing)
        case = dict(first)
        for name in names:
            if name in case:
                continue
            gains = {
                repr(value): (_gain(case, name, value, names, missing), value)
                for value in factors[name]
            }
            best = max(gain for gain, _ in gains.values())
            # Rotate among equally good values, or the first would stand everywhere.
            good = [value for gain, value in gains.values() if gain == best]
            case[name] = good[len(cases) % len(good)]
        for a, b in combinations(names, 2):
            missing.discard(((a, case[a]), (b, case[b])))
        cases.append({name: case[name] for name in names})
    return cases


def _gain(case: dict, name: str, value: Any, names: list[str], missing: set) -> int:
    gain = 0
    for other, held in case.items():
        pair = ((name, value), (other, held))
        if names.index(other) < names.index(name):
            pair = pair[::-1]
        gain += pair in missing
    return gain


def covers(cases: list[dict[str, Any]], factors: Mapping[str, Sequence[Any]]) -> bool:
    """Whether all pairs occur."""
    return all(
        any(case[a] == x and case[b] == y for case in cases)
        for a, b in combinations(factors, 2)
        for x, y in product(factors[a], factors[b])
    )
