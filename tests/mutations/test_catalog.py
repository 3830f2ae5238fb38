"""The lists of mutations fit the code as it is."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutations.catalog import ROOT, Mutation, load

EVERY = load()


def test_ids_are_unique():
    assert [i for i, n in Counter(m.id for m in EVERY).items() if n > 1] == []


@pytest.mark.parametrize("mutation", EVERY, ids=lambda m: m.id)
def test_a_mutation_applies_and_still_parses(mutation: Mutation):
    changed = mutation.applied_to((ROOT / mutation.file).read_text("utf-8"))
    ast.parse(changed)
    missing = [t for t in mutation.tests.split() if not (ROOT / t.partition("::")[0]).exists()]
    assert missing == []
    assert bool(mutation.unseen) != bool(mutation.tests), "either tests, or a reason why none can"


def test_a_mutation_that_moved_is_named():
    with pytest.raises(ValueError, match="stands 2 times"):
        Mutation("X1", "f.py", "a", "b", "tests").applied_to("a a")
