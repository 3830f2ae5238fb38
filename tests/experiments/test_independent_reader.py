"""The figures of every study in the project, found by a reader that shares no code with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.study import load_study, verdict_of

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/receipts.jsonl"))


@pytest.mark.parametrize("id", STUDIES)
def test_an_independent_reader_finds_the_same_figures(id: str) -> None:
    """Ten lines that share nothing with the package but the format of `receipts.jsonl`."""
    found: dict[str, dict[str, float]] = {}
    with open(ROOT / "experiments" / id / "receipts.jsonl") as file:
        first, *others = [json.loads(line) for line in file]
    for record in others:
        found.setdefault(record["metric"], {})[record["inputs_hash"]] = record["value"]
    recomputed = {}
    for bar in first["value"]["criteria"][:3]:
        values = list(found.get(bar["metric"], {}).values())
        pick = {"max": max, "min": min, "sum": sum, "only": max}
        pick["mean"] = lambda numbers: sum(numbers) / len(numbers)
        is_whole = len(values) == bar["num_receipts"]
        recomputed[bar["name"]] = pick[bar["reduce"]](values) if is_whole else None

    verdict = verdict_of(load_study(ROOT / "experiments", id), ROOT / "experiments" / id)
    judged = {one.criterion.name: one.value for one in verdict.judged}
    assert recomputed
    assert {name: judged[name] for name in recomputed} == recomputed
