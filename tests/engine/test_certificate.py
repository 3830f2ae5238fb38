"""The certificate holds in strict mode, and each safeguard taken away makes it fail by bits."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from qwisp.cli import main
from qwisp.engine.certificate import certify
from qwisp.engine.certificate_runs import CASES, Case
from qwisp.engine.identity import Safeguards
from qwisp.engine.loading import load_model
from qwisp.receipts import read_receipts

pytestmark = pytest.mark.mlx

# The safeguard taken away, a model and a case that need it, and the operation that must be named.
MUTATIONS = {
    "fixed_width": ("tiny:llama", "together", "q_proj"),
    "aligned_windows": ("tiny:llama", "restored", "q_proj"),
    "blocked_attention": ("tiny:llama", "together", "attention"),
    "ordered_router": ("tiny:qwen3_moe", "together", "experts"),
    "raw_rings": ("tiny:gemma3", "moved and paused", "attention"),
}


def case(name: str) -> list[Case]:
    return [case for case in CASES if case.name == name]


@pytest.mark.parametrize(
    ("model", "dtype"), [("tiny:hybrid_moe", "bfloat16"), ("tiny:gemma3", "float32")]
)
def test_strict_mode_is_certified_under_all_hostile_kernels(model, dtype):
    made = certify(load_model(model, dtype=dtype), hostile=True, max_new=30)
    assert made.holds
    assert made.identity.is_strict
    assert sum(row.moves for row in made.rows) >= 2
    assert made.altered["products"] > 0
    assert made.altered["batched"] > 0
    assert made.altered["attention"] == 0  # strict mode never calls it


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_each_safeguard_taken_away_is_caught_by_unequal_bits(name):
    model, where, operation = MUTATIONS[name]
    made = certify(
        load_model(model),
        hostile=True,
        safeguards=Safeguards().without(name),
        max_new=30,
        cases=case(where),
    )
    differing = [row for row in made.rows if row.step is not None]
    assert differing
    assert all(row.ulp > 0 for row in differing)
    assert "layers." in differing[0].operation
    assert differing[0].operation.split(" ")[0].endswith(operation)
    assert differing[0].layer_kind in ("full attention", "sliding window")


def test_without_hostile_kernels_a_cpu_hides_the_stock_way_of_products():
    """Why the hostile kernels exist: MLX's CPU kernels are row-stable."""
    made = certify(
        load_model("tiny:llama"),
        safeguards=Safeguards().without("fixed_width"),
        max_new=8,
        cases=case("together"),
    )
    assert made.holds


def test_certify_exits_0_in_strict_mode_and_1_the_stock_way(capsys, tmp_path):
    asked = ["certify", "--model", "tiny", "--hostile", "--max-new", "12", "--json"]
    receipts = tmp_path / "receipts.jsonl"
    assert main([*asked, "--receipts", str(receipts)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is True
    if find_spec("mlx_lm"):
        assert document["mlx_lm"].endswith("12 of 12 greedy tokens the same")
    assert len(document["rows"]) == 48
    (receipt,) = read_receipts(receipts).all
    assert receipt.value["holds"] is True
    assert receipt.inputs["identity"] == "cpu float32 W=8 C=64 strict"

    assert main([*asked, "--non-strict"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["holds"] is False
    assert "differ from solo, first by " in captured.err
    assert "layers." in captured.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--model", "tiny:none"], "tiny model 'none' is not known"),
        (["--model", "tiny", "--width", "4"], "decode width is 4 rows"),
        (["--model", "tiny", "--max-new", "1"], "replies of 1 tokens"),
        (["--model", "tiny", "--dtype", "int8"], "int8"),
        (["--model", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_two_lines(capsys, arguments, what):
    assert main(["certify", *arguments]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert len(err.strip().splitlines()) == 2
