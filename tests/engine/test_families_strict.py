"""The strict suite on the families whose blocks are other arrangements of the same parts."""

from __future__ import annotations

import pytest

from qwisp.engine.proof.certificate import certify
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.spec.tiny import MORE_TINY, TINY
from qwisp.engine.weights.loading import load_decoder

from .pairwise import covering_array, covers
from .test_batched_equals_solo import FACTORS, check
from .test_splits_and_restores import check_residue

pytestmark = pytest.mark.mlx

FAMILY_FACTORS = FACTORS | {"model": tuple(MORE_TINY)}
CASES = covering_array(FAMILY_FACTORS)
SMOKE = [  # every family once, in both types, under all hostile kernels, moved and paused
    {
        "model": model,
        "dtype": ("float32", "bfloat16")[n % 2],
        "kernels": "all",
        "lanes": 5 + n % 4,
        "layout": ("growing", "tight")[n % 2],
        "draws": ("seeded", "greedy")[n % 2],
        "ahead": n % 2,
        "poisons": True,
    }
    for n, model in enumerate(MORE_TINY)
]


def test_the_array_covers_all_pairs():
    assert covers(CASES, FAMILY_FACTORS)


@pytest.mark.parametrize("n", range(len(SMOKE)), ids=list(MORE_TINY))
def test_a_family_keeps_its_bits_in_company(n):
    check(SMOKE[n], n)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(len(CASES)))
def test_company_changes_no_bit(n):
    check(CASES[n], n)


@pytest.mark.parametrize("model", list(MORE_TINY))
def test_cut_saved_and_restored(model):
    check_residue(model, 31)


@pytest.mark.slow
@pytest.mark.parametrize("residue", range(64))
@pytest.mark.parametrize("model", list(MORE_TINY))
def test_cut_saved_and_restored_at_every_residue(model, residue):
    check_residue(model, residue)


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MORE_TINY))
def test_the_stock_way_is_caught(model):
    loaded = load_decoder(f"tiny:{model}")
    stock = certify(loaded, hostile=True, max_new=12, tokens=300, safeguards=Safeguards.none())
    assert not stock.holds
    assert any(row.operation for row in stock.rows)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FACTORS["dtype"])
@pytest.mark.parametrize("model", [*TINY, *MORE_TINY])
def test_a_family_is_certified_in_full_at_1300_tokens(model, dtype):
    made = certify(load_decoder(f"tiny:{model}", dtype=dtype), hostile=True)
    assert made.verdict == "identical", [row for row in made.rows if row.step is not None]
    assert made.exercised.longest_tokens == 1299
