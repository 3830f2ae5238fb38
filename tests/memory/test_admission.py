"""One rule for contexts: what it admits, what it refuses, and that every surface agrees with it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.errors import BadInput
from qwisp.memory.admission import LADDER_TOKENS, UNCHUNKED_KV_BUDGET_BYTES, ContextAdmission
from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.refusal import ContextRefused
from qwisp.spec.catalog import load_machine, load_model, model_names
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, KIB

GEMMA = load_model("gemma-4-26b-a4b")
QWEN = load_model("qwen3.6-35b-a3b")
M1 = load_machine("m1-max-64gb")
TIGHT = MachineSpec(name="tight", title="tight", memory_bytes=40 * GIB)
SMALL = ModelSpec.from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    },
    name="small",
)


def test_the_ladder_is_cut_at_the_native_maximum():
    assert ContextAdmission(GEMMA).ladder == LADDER_TOKENS == tuple(
        KIB * k for k in (4, 8, 16, 32, 64, 96, 128, 192, 256)
    )  # fmt: skip
    shorter = replace(GEMMA, context_max_tokens=131072)
    assert ContextAdmission(shorter).ladder[-1] == 131072
    assert ContextAdmission(SMALL).ladder == (2048,)


def test_values_between_rungs_are_legal_up_to_the_native_maximum():
    rule = ContextAdmission(GEMMA)
    assert rule.check(10_553) is None
    assert rule.check(262_144) is None
    assert rule.check(262_145).rule == "native maximum"
    assert rule.check(0).rule == "positive"
    assert rule.check(-5).rule == "positive"


def test_gemma_unchunked_64k_is_allowed_and_96k_refused():
    rule = ContextAdmission(GEMMA, prefill="unchunked")
    assert rule.check(65536) is None
    assert rule.unchunked_kv_bytes(65536) == int(13.75 * GIB)
    refusal = rule.check(98304)
    assert (refusal.rule, refusal.needs_bytes) == ("unchunked KV budget", int(20.625 * GIB))
    assert refusal.budget_bytes == UNCHUNKED_KV_BUDGET_BYTES == 16 * GIB
    assert refusal.legal_tokens[-1] == 65536
    nearest = refusal.offers[0]
    assert (nearest.change, nearest.context_tokens) == ("smaller context", 65536)
    assert "chunked prefill" in {offer.change for offer in refusal.offers}


def test_qwen_unchunked_is_allowed_at_every_rung():
    rule = ContextAdmission(QWEN, prefill="unchunked")
    assert rule.legal == LADDER_TOKENS
    assert round(rule.unchunked_kv_bytes(262144) / GIB, 2) == 5.06


@pytest.mark.parametrize("engine", [Fieldfare(), LlamaCpp()])
def test_other_engines_are_bounded_by_the_same_budget(engine):
    rule = ContextAdmission(GEMMA, prefill="unchunked", dialect=engine)
    assert rule.legal[-1] == 65536


def test_an_unknown_family_is_admitted_if_any_supported_model_could_run():
    unknown = ContextAdmission(None, prefill="unchunked")
    for context in (*LADDER_TOKENS, 10_553, 262_145):
        each = [
            ContextAdmission(load_model(name), prefill="unchunked").check(context)
            for name in model_names()
        ]
        assert (unknown.check(context) is None) == (None in each), context
    assert unknown.check(262144) is None
    assert ContextAdmission(GEMMA, prefill="unchunked").check(262144) is not None


def test_an_unknown_family_is_refused_where_nothing_could_run():
    tiny = MachineSpec(name="tiny", title="tiny", memory_bytes=KIB)
    refusal = ContextAdmission(None, tiny).check(4096)
    assert refusal.rule == "machine memory"
    assert refusal.model in model_names()


def test_machine_fit_is_the_sum_of_the_terms_against_what_is_usable():
    rule = ContextAdmission(QWEN, TIGHT, lanes=8)
    refusal = rule.check(262144)
    assert refusal.rule == "machine memory"
    assert refusal.needs_bytes == sum(t.num_bytes for t in refusal.terms if t.is_counted)
    assert refusal.budget_bytes == TIGHT.usable_bytes == 28 * GIB
    assert {term.name for term in refusal.terms} == {
        "weights",
        "runtime overhead",
        "cache",
        "prefill transient",
    }


def test_every_offer_is_admitted_by_the_rule_itself():
    rule = ContextAdmission(QWEN, M1, lanes=8)
    refusal = rule.check(131072 + 65536)
    kinds = {offer.change for offer in refusal.offers}
    assert kinds == {"smaller context", "fewer lanes", "8-bit KV"}
    for offer in refusal.offers:
        changed = {
            "smaller context": rule,
            "fewer lanes": replace(rule, lanes=offer.value) if offer.change == "fewer lanes" else 0,
            "8-bit KV": replace(rule, dialect=rule.dialect.with_kv_bits(8)),
        }[offer.change]
        assert changed.check(offer.context_tokens) is None
        assert changed.memory(offer.context_tokens).known_bytes == offer.needs_bytes
    lanes = next(offer.value for offer in refusal.offers if offer.change == "fewer lanes")
    assert replace(rule, lanes=lanes + 1).check(refusal.context_tokens) is not None


def test_the_widest_chunk_that_fits_is_offered_where_the_transient_is_what_is_too_much():
    machine = load_machine("m5-max-36gb")
    rule = ContextAdmission(QWEN, machine, dialect=MlxLm())
    offers = {offer.change: offer for offer in rule.check(131072).offers}
    chunk = offers["smaller prefill chunk"].value
    assert chunk == 512
    assert replace(rule, dialect=MlxLm(chunk_tokens=chunk)).check(131072) is None
    assert replace(rule, dialect=MlxLm(chunk_tokens=2 * chunk)).check(131072) is not None
    assert "smaller prefill chunk" not in {
        offer.change for offer in ContextAdmission(QWEN, TIGHT, lanes=64).check(131072).offers
    }


def test_where_nothing_would_fit_nothing_is_offered():
    refusal = ContextAdmission(QWEN, load_machine("m4-16gb"), lanes=4).check(65536)
    assert (refusal.legal_tokens, refusal.offers) == ((), ())
    assert "nothing would fit" in refusal.todo


def test_rows_that_have_no_8_bit_form_are_not_offered_in_it():
    model = load_model(Path(__file__).parents[1] / "data/configs/deepseek_v2.json")
    wide = ContextAdmission(model, weights=0)
    machine = MachineSpec(name="m", title="m", memory_bytes=GIB, limit_bytes=500 * 1024**2)
    rule = ContextAdmission(model, machine, weights=0, lanes=64)
    refusal = rule.check(rule.native_max_tokens)
    assert refusal.rule == "machine memory"
    assert "8-bit KV" not in {offer.change for offer in refusal.offers}
    with pytest.raises(BadInput, match="blocks"):
        replace(wide, dialect=wide.dialect.with_kv_bits(8)).memory(4096)


def test_the_largest_context_is_admitted_and_one_token_more_is_not():
    rule = ContextAdmission(QWEN, TIGHT, lanes=4)
    largest = rule.largest()
    assert rule.check(largest) is None
    assert rule.check(largest + 1) is not None
    assert ContextAdmission(QWEN, load_machine("m4-16gb")).largest() is None


def test_weights_can_be_given_in_bytes():
    machine = MachineSpec(name="m", title="m", memory_bytes=10 * GIB)
    assert ContextAdmission(SMALL, machine, weights=6 * GIB).check(2048) is None
    assert ContextAdmission(SMALL, machine, weights=7 * GIB).check(2048) is not None


def test_a_known_limit_wins_over_the_share():
    limited = replace(TIGHT, limit_bytes=39 * GIB, limit_name="wired limit")
    assert ContextAdmission(QWEN, limited, lanes=3).check(262144) is None
    assert ContextAdmission(QWEN, TIGHT, lanes=3).check(262144) is not None
    refusal = ContextAdmission(QWEN, limited, lanes=8).check(262144)
    assert "wired limit" in refusal.what


def test_admit_raises_the_refusal_in_two_lines():
    with pytest.raises(ContextRefused) as caught:
        ContextAdmission(GEMMA, prefill="unchunked").admit(98304)
    what, todo = str(caught.value).splitlines()
    assert "98,304" in what
    assert "20.62 GiB" in what
    assert "64K" in todo
    assert ContextAdmission(GEMMA).admit(98304) == 98304


def test_one_refusal_is_rendered_alike_everywhere():
    refusal = ContextAdmission(GEMMA, prefill="unchunked").check(98304)
    document = json.loads(json.dumps(refusal.to_dict()))
    assert str(refusal) == f"{document['what']}\n{document['todo']}"
    assert document["offers"][0]["text"] in document["todo"]
    assert refusal.what in refusal._repr_html_()
    hostile = replace(refusal, rule="native maximum", model="<script>")
    assert "<script>" not in hostile._repr_html_()


@pytest.mark.parametrize("wrong", [{"prefill": "off"}, {"lanes": 0}, {"lanes": 10**6}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadInput):
        ContextAdmission(GEMMA, **wrong)


@settings(deadline=None)
@given(
    context=st.integers(1, 262144),
    lanes=st.integers(1, 16),
    prefill=st.sampled_from(["chunked", "unchunked"]),
    model=st.sampled_from([GEMMA, QWEN]),
)
def test_a_smaller_context_or_fewer_lanes_never_turn_yes_into_no(context, lanes, prefill, model):
    rule = ContextAdmission(model, M1, prefill=prefill, lanes=lanes)
    if rule.broken(context) is None:
        assert rule.broken(max(1, context // 2)) is None
        assert replace(rule, lanes=max(1, lanes - 1)).broken(context) is None


def fit_command(*arguments: str):
    from qwisp.cli.fit import command

    return CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)


CONTEXTS = (2048, 4096, 10_553, 65536, 98304, 196608, 262144, 262145, 1048576)


@pytest.mark.parametrize("model", ["gemma-4-26b-a4b", "qwen3.6-35b-a3b"])
@pytest.mark.parametrize("prefill", ["chunked", "unchunked"])
def test_the_command_line_agrees_with_the_rule(model: str, prefill: str):
    """Matched controls: the same values through the real parser and through the rule."""
    disagreements = []
    for context, lanes in product(CONTEXTS, (1, 6)):
        rule = ContextAdmission(load_model(model), M1, prefill=prefill, lanes=lanes)
        settings = {"model": model, "machine": M1.name, "prefill": prefill}
        settings |= {"context": str(context), "lanes": str(lanes)}
        spelled = [word for name, value in settings.items() for word in (f"--{name}", value)]
        result = fit_command(*spelled)
        refusal = rule.check(context)
        expected = json.loads(json.dumps(refusal.to_dict())) if refusal else None
        found = (result.exit_code, json.loads(result.stdout)["refusal"])
        if found != (int(refusal is not None), expected):
            disagreements.append((context, lanes))
    assert disagreements == []


@pytest.mark.parametrize("context", [4096, 262144, 262145, 1048576])
@pytest.mark.parametrize("memory", [None, "12GiB"])
def test_plan_replay_and_the_lab_read_a_context_by_the_rule(context: int, memory: str | None):
    """All three ask through one reader; named memory leaves the machine out of it."""
    from qwisp.planner.question import Question, read_question
    from qwisp.spec.data_files import data_path

    def ask() -> Question:
        return read_question(
            model=QWEN.name,
            machine=M1.name,
            memory=memory,
            context=str(context),
            trace=data_path("traces", "agents.jsonl"),
        )

    refusal = ContextAdmission(QWEN, None if memory else M1).check(context)
    if refusal is None:
        assert ask().own_context_tokens == context
        return
    with pytest.raises(ContextRefused) as caught:
        ask()
    assert caught.value.refusal == refusal
