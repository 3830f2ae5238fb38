"""The certificate holds in strict mode, and a safeguard taken away makes it fail by bits."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from qwisp.cli import main
from qwisp.engine.proof.certificate import DEFINITION, certify
from qwisp.engine.proof.certificate_runs import CASES, Case
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.identity import Safeguards
from qwisp.engine.spec.tiny import MORE_TINY, TINY, tiny_config
from qwisp.engine.weights.loaded import LoadedModel, made_model
from qwisp.engine.weights.loading import load_decoder
from qwisp.engine.weights.random_weights import random_weights
from qwisp.receipts import read_receipts

pytestmark = pytest.mark.mlx

PROJECTIONS = ("_proj", "in_proj_qkv", "per_layer_model_projection")  # the last before any layer
# A case that needs each safeguard, and the operation that must be named first.
BITES = {
    "fixed_width": ("together", PROJECTIONS),
    # Windows of 62 and 64 rows share an order of products, not of sums inside attention.
    "aligned_windows": ("restored", (*PROJECTIONS, "attention")),
    "blocked_attention": ("together", ("attention",)),
    "ordered_router": ("together", ("experts",)),
    "raw_rings": ("moved and paused", ("attention",)),
}
# What a model lacks for a safeguard to bite on; every other pair of the two must be noticed.
NO_ROUTER = {"hybrid", "llama", "gemma3", "qwen3", "gemma4"}
NO_RINGS = {"hybrid", "hybrid_moe", "llama", "qwen3_moe", "qwen3", "qwen3_next"}
NOTHING = {("ordered_router", model): "it has no experts" for model in NO_ROUTER} | {
    ("raw_rings", model): "it has no sliding windows" for model in NO_RINGS
}
# One model each runs always; the table in full is for the long tests.
ALWAYS = {
    ("fixed_width", "llama"),
    ("aligned_windows", "hybrid"),
    ("blocked_attention", "qwen3"),
    ("ordered_router", "qwen3_moe"),
}  # rings: see windows below
PAIRS = [
    pytest.param(name, model, marks=() if (name, model) in ALWAYS else pytest.mark.slow)
    for name in BITES
    for model in (*TINY, *MORE_TINY)
    if (name, model) not in NOTHING
]


def case(name: str) -> list[Case]:
    return [case for case in CASES if case.name == name]


def with_window(window: int) -> LoadedModel:
    config = {**tiny_config("gemma3"), "sliding_window": window}
    spec = read_decoder(config)
    return made_model(f"window {window}", config, spec, random_weights(spec, 0), "float32")


@pytest.mark.parametrize(
    ("model", "dtype", "tokens", "blocks"),
    [("tiny:hybrid_moe", "bfloat16", 1300, 6), ("tiny:gemma3", "float32", 1100, 5)],
)
def test_strict_mode_is_certified_under_all_hostile_kernels(model, dtype, tokens, blocks):
    loaded = load_decoder(model, dtype=dtype)
    some = [case for case in CASES if case.name in ("moved and paused", "restored")]
    made = certify(loaded, hostile=True, max_new=20, tokens=tokens, cases=some)
    assert made.holds
    assert made.verdict == "identical"
    assert made.identity.is_strict
    assert sum(row.moves for row in made.rows) >= 2
    assert min(made.altered[shim] for shim in ("products", "batched", "blocks", "sums")) > 0
    assert made.altered["attention"] == 0  # strict mode never calls it
    assert made.exercised.longest_tokens == tokens - 1  # the last token is never fed
    assert made.exercised.blocks == blocks
    assert made.exercised.widths == {8}
    assert {1, 8} <= made.exercised.live
    held = {row.request: row.steps for row in made.rows if row.case == DEFINITION}
    layers = {"tiny:hybrid_moe": 1, "tiny:gemma3": 2}[model]  # one of each kind of attention
    assert held == {0: (tokens - 1) * layers, 2: (257 + 19) * layers}


def test_the_table_of_safeguards_names_every_model_of_the_tiny_list():
    for model in (*TINY, *MORE_TINY):
        blocks = read_decoder(tiny_config(model)).blocks
        has_rings = any(type(block.layer).__name__ == "SlidingWindow" for block in blocks)
        has_experts = any(type(block.ffn).__name__ != "DenseFfn" for block in blocks)
        assert (("raw_rings", model) in NOTHING) == (not has_rings)
        assert (("ordered_router", model) in NOTHING) == (not has_experts)


@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_each_safeguard_taken_away_is_caught_by_unequal_bits(name, model):
    where, operations = BITES[name]
    made = certify(
        load_decoder(f"tiny:{model}"),
        hostile=True,
        safeguards=Safeguards().without(name),
        max_new=24 if name == "raw_rings" else 6,
        tokens=320,
        cases=case(where),
    )
    differing = [row for row in made.rows if row.step is not None]
    assert differing
    assert made.verdict == "differs"
    assert all(row.ulp > 0 for row in differing)
    operation = differing[0].operation.split(" ")[0]
    assert operation.endswith(operations)
    kinds = {"full attention", "sliding window", "gated delta"}
    assert differing[0].layer_kind in (kinds if "layers." in operation else {"output"})


@pytest.mark.parametrize(
    "window",
    [128, *(pytest.param(window, marks=pytest.mark.slow) for window in (40, 300, 1024))],
)
def test_rings_that_do_not_move_raw_are_caught_at_any_window(window):
    """The stream that moves has outgrown window + C rows before: its ring has wrapped."""
    how = {"hostile": True, "max_new": 20, "cases": case("moved and paused")}
    model, tokens = with_window(window), window + 2 * 64 + 20
    broken = certify(model, safeguards=Safeguards().without("raw_rings"), tokens=tokens, **how)
    assert broken.exercised.rings[window].moved > 0
    assert not broken.holds
    assert next(row for row in broken.rows if row.step is not None).layer_kind == "sliding window"


def test_without_hostile_kernels_a_cpu_hides_the_stock_way_of_products():
    """Why the hostile kernels exist: MLX's CPU kernels are row-stable."""
    made = certify(
        load_decoder("tiny:llama"),
        safeguards=Safeguards().without("fixed_width"),
        max_new=8,
        tokens=300,
        cases=case("together"),
    )
    assert made.holds
    assert len(made.exercised.widths) > 1


def test_certify_exits_0_in_strict_mode_and_1_the_stock_way(capsys, tmp_path):
    asked = ["certify", "--model", "tiny:llama", "--hostile", "--max-new", "4", "--tokens", "200"]
    receipts = tmp_path / "receipts.jsonl"
    assert main([*asked, "--json", "--receipts", str(receipts)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is True
    assert document["verdict"] == "identical as far as exercised"
    assert document["exercised"]["longest_tokens"] == 199
    assert document["not_exercised"] == [
        "full attention: not exercised: 1 of 5 blocks of 256 keys; ask --tokens 1280",
        "moves: not exercised: no stream outgrew its session; ask --max-new 48",
    ]
    if find_spec("mlx_lm"):
        assert document["mlx_lm"].endswith("4 of 4 greedy tokens the same")
    assert len(document["rows"]) == 5 * 8 + 4 + 2 + 6 + 7 + 2
    (receipt,) = read_receipts(receipts).all
    assert receipt.value["holds"] is True
    assert receipt.value["verdict"] == "identical as far as exercised"
    assert receipt.value["exercised"] == document["exercised"]
    assert receipt.inputs["identity"] == "cpu float32 W=8 C=64 strict"
    assert receipt.inputs["tokens"] == 200

    assert main([*asked, "--non-strict"]) == 1
    captured = capsys.readouterr()
    assert "differ from solo, first by " in captured.err
    assert "layers." in captured.err
    assert "identical to solo" not in captured.out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--model", "tiny:none"], "tiny model 'none' is not known"),
        (["--model", "tiny", "--width", "4"], "decode width is 4 rows"),
        (["--model", "tiny", "--max-new", "1"], "replies of 1 tokens"),
        (["--model", "tiny", "--tokens", "175"], "longest stream of 175 tokens"),
        (["--model", "tiny", "--dtype", "int8"], "int8"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--model", "random:/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_two_lines(capsys, arguments, what):
    assert main(["certify", *arguments]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert len(err.strip().splitlines()) == 2
