"""*Identical* is said of what was reached, and what was not is named with what would reach it."""

from __future__ import annotations

import pytest

from qwisp.cli import main
from qwisp.engine.proof.certificate import certify
from qwisp.engine.proof.certificate_evidence import Evidence, RingUse
from qwisp.engine.proof.certificate_runs import Case, prompt_lengths
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import tiny_config
from qwisp.engine.weights.loading import load_decoder

from .doubles import DOUBLES

pytestmark = pytest.mark.mlx

FAR = {"sliding_window": 4096, "max_position_embeddings": 8192}
FULL = {"longest_tokens": 1299, "live": {1, 8}, "widths": {8}, "moves": 2, "restores": 6}


def missing(model: str, max_new: int = 48, config: dict | None = None, **reached) -> list[str]:
    spec = read_decoder({**tiny_config(model), **(config or {})})
    return [str(one) for one in Evidence(**{**FULL, **reached}).missing(spec, 64, max_new)]


def test_nothing_is_missing_where_everything_was_reached():
    wrapped = {40: RingUse({0, 1}, moved=1, restored=1)}
    assert missing("llama") == []
    assert missing("hybrid_moe", expert_indices=64) == []
    assert missing("gemma3", rings=wrapped) == []


def test_five_blocks_are_needed_because_few_commute():
    """Two give one sum in any order, and so did three, the last with 7 keys, by place."""
    assert missing("llama", longest_tokens=1025) == []
    assert missing("llama", longest_tokens=1024) == [
        "full attention: not exercised: 4 of 5 blocks of 256 keys; ask --tokens 1280"
    ]


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (RingUse(), "longest stream 1,299 tokens; ask --tokens 4300"),
        (RingUse({0}, moved=1), "1 moves and 0 restores after a ring wrapped; ask --tokens 4300"),
        (
            RingUse({0}, restored=1),
            "0 moves and 1 restores after a ring wrapped; ask --tokens 4300",
        ),
    ],
)
def test_a_window_longer_than_every_stream_is_no_test_of_rings(use, why):
    found = missing("gemma3", config=FAR, rings={4096: use})
    assert found == [f"sliding window 4,096: not exercised: {why}"]
    # 4,096 + 64 rows of a ring, then half a window to restore, a last token and 48 of a reply.
    assert missing("gemma3", rings={40: RingUse({0}, restored=1)}) == [
        "sliding window 40: not exercised: 0 moves and 1 restores after a ring wrapped; "
        "ask --max-new 48"
    ]


def test_experts_moves_restores_and_one_window_of_prefill_are_named():
    assert missing("qwen3_moe", expert_indices=63) == [
        "experts: not exercised: 63 indices a step, mlx-lm sorts from 64; ask --width 16 or more"
    ]
    assert missing("llama", moves=0, restores=0) == [
        "moves: not exercised: no stream outgrew its session; ask --max-new 48",
        "restores: not exercised: no saved prefix was used; ask --tokens 1300",
    ]
    assert missing("hybrid", longest_tokens=64)[1] == (
        "gated delta: not exercised: longest stream 64 tokens, one window of prefill; "
        "ask --tokens 1280"
    )


def test_lengths_lie_on_both_sides_of_the_first_two_block_boundaries():
    lengths = prompt_lengths(1300, 48, 8)
    assert lengths[0] == max(lengths) == 1252
    assert {255, 256, 257, 511, 512, 513, 1, 2, 64, 65, 626} <= set(lengths)
    wide = prompt_lengths(300, 20, 20)
    assert len(wide) == 20
    assert max(wide) == wide[0] == 280
    assert min(wide) == 1


def test_what_is_seen_is_what_ran():
    """300 tokens beside 13: 12 are decoded, of which the last is never fed; 13 wrap no ring."""
    pair = Case(name="pair", company=1, longest_at=1, turn=2)
    made = certify(load_decoder("tiny:gemma3"), max_new=12, tokens=300, cases=[pair])
    assert [row.request for row in made.rows if row.case == "pair"] == [3, 0]
    seen = made.exercised.as_dict()
    assert seen == {
        "longest_tokens": 299,
        "blocks": 2,
        "live": [1, 2],
        "widths": [8],
        "moves": 0,
        "restores": 0,
        "expert_indices": 0,
        "defined_rows": 2 * (299 + 257 + 11),  # a sliding and a full layer
        "rings": {"40": {"wrapped": 2, "moved": 0, "restored": 0}},
    }
    assert [str(one).partition(":")[0] for one in made.missing] == [
        "full attention",
        "sliding window 40",
        "moves",
        "restores",
    ]


BESIDE = Case(name="beside", company=5, longest_at=1)


@pytest.mark.parametrize("name", DOUBLES)
def test_each_faulty_engine_is_caught(name):
    """The longest stream has three blocks and stands in place 1; five others live beside it."""
    alike = name in ("running rescale", "bf16 scores")  # the same fault alone and in company
    with DOUBLES[name]():
        made = certify(
            load_decoder("tiny:llama"),
            hostile=True,
            max_new=4,
            tokens=520,
            cases=[] if alike else [BESIDE],
        )
    differing = [row for row in made.rows if row.step is not None]
    assert differing
    assert all(row.ulp > 0 for row in differing)
    first = differing[0]
    assert (first.case == "definition") == alike
    named = ".q_proj" if name == "wider from six lanes" else ".attention"
    assert first.operation.split(" ")[0].endswith(named)


def test_the_engine_without_a_fault_passes_the_same():
    made = certify(load_decoder("tiny:llama"), hostile=True, max_new=4, tokens=520, cases=[BESIDE])
    assert made.holds


def test_the_command_names_a_fault_that_is_the_same_alone_and_in_company(capsys):
    asked = ["certify", "--model", "tiny:llama", "--tokens", "130", "--max-new", "2"]
    with DOUBLES["bf16 scores"]():
        assert main(asked) == 1
    err = capsys.readouterr().err
    assert "attention is not its definition, first in model.layers.0.self_attn.attention" in err
