"""What `fit` answers: terms, ladder, recommended context, transient, side budgets, spellings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from qwisp.cli.fit import command
from qwisp.cost import load_cost
from qwisp.cost.offered import solo_prefill_ps
from qwisp.errors import BadInput
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.fit import fit
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.session_bytes import SessionBytes
from qwisp.memory.side_budgets import SideBudgets, blob_bytes
from qwisp.memory.transient import transient_bytes, widest_chunk
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB

CONFIGS = Path(__file__).parents[1] / "data/configs"
GEMMA = load_model("gemma-4-26b-a4b")
QWEN = load_model("qwen3.6-35b-a3b")
M1, M5 = load_machine("m1-max-64gb"), load_machine("m5-max-36gb")


def test_without_an_asked_context_the_recommended_one_is_shown():
    answer = fit(ContextAdmission(QWEN, M1), cost=load_cost(QWEN.name, M1.name))
    assert answer.context_tokens == answer.recommended.context_tokens == 32768
    assert answer.largest_tokens == 262144
    assert "time is the limit" in answer.recommended.why


def test_prefill_times_are_those_of_the_cost_model_and_patience_moves_the_recommendation():
    cost = load_cost(QWEN.name, M1.name)
    rule = ContextAdmission(QWEN, M1)
    answer = fit(rule, cost=cost)
    expected = solo_prefill_ps(cost, np.array(rule.ladder)) / 1e12
    assert [rung.prefill_s for rung in answer.rungs] == pytest.approx(expected.tolist())
    assert fit(rule, cost=cost, patience_s=1e9).recommended.context_tokens == 262144
    assert fit(rule, cost=cost, patience_s=0).recommended.context_tokens == 4096


def test_without_times_nothing_is_recommended_and_nothing_is_guessed():
    answer = fit(ContextAdmission(QWEN, load_machine("m5-ultra-256gb")))
    assert answer.recommended.context_tokens is None
    assert all(rung.prefill_s is None for rung in answer.rungs)


def test_a_chunk_that_is_wider_costs_more_and_the_widest_that_fits_is_planned():
    peaks = [transient_bytes(QWEN, 65536, chunk) for chunk in (64, 256, 1024, 4096)]
    assert peaks == sorted(peaks)
    assert peaks[1] == 65536 * (2 * 2048 + 2 * 16 * 256)
    plan = widest_chunk(QWEN, 65536, 1 * GIB)
    assert (plan.chunk_tokens, plan.transient_bytes) == (256, peaks[1])
    assert "256" in plan.says
    assert widest_chunk(QWEN, 65536, 3 * GIB).chunk_tokens == 1024
    assert widest_chunk(QWEN, 65536, MIB) is None


def test_fused_head_sizes_have_no_transient_until_the_cache_is_quantised():
    model = ModelSpec.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 1024,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        }
    )
    assert transient_bytes(model, 8192, 512) == 0
    scores, rows = 8192 * 2 * (1024 + 8 * 512), 8192 * 2 * (128 + 128) * 2
    assert transient_bytes(model, 8192, 512, is_quantised=True) == scores + rows
    assert transient_bytes(QWEN, 8192, 1) == 0


def test_a_measured_peak_slope_is_cache_inputs_and_scores():
    """Reported to mlx-lm (1480): Qwen 3.6 in 4 bits peaked at 21.7 GB for 8,000, 38 for 192,000."""
    serving = ContextAdmission(QWEN, dialect=MlxLm(), weights=0)
    low, high = (serving.memory(n).known_bytes for n in (8192, 196608))
    slope = (high - low) / (196608 - 8192)
    assert slope == 20480 + 2 * 2048 + 2 * 16 * 2048
    assert abs(slope / ((38.0e9 - 21.7e9) / 184000) - 1) < 0.02


def test_an_attention_over_a_latent_has_no_fused_kernel():
    model = load_model(CONFIGS / "deepseek_v2.json")
    assert transient_bytes(model, 8192, 512) == 8192 * 2 * (
        model.hidden + model.query_heads * 512
    )  # fmt: skip


def test_sizes_that_are_not_known_leave_the_transient_unmeasured():
    model = load_model("qwen3.8-flash-next")
    assert transient_bytes(model, 8192, 256) is None
    terms = {term.name: term for term in ContextAdmission(model).memory(8192).terms}
    assert terms["prefill transient"].provenance == "unmeasured"
    assert terms["weights"].num_bytes is None


def test_a_discrete_device_pays_for_its_own_context_and_not_for_metal():
    h200 = load_machine("h200-141gb")
    memory = ContextAdmission(QWEN, h200).memory(4096)
    overhead = next(term for term in memory.terms if term.name == "runtime overhead")
    assert (overhead.num_bytes, overhead.provenance) == (543162368, "measured here")
    other = MachineSpec(name="x", title="x", memory_bytes=24 * GIB, memory_kind="vram")
    borrowed = ContextAdmission(QWEN, other).memory(4096).terms[1]
    assert (borrowed.num_bytes, borrowed.provenance) == (543162368, "borrowed")


def test_side_budgets_are_bytes_like_everything_else():
    side = SideBudgets(
        prompt_cache_blobs=3, prompt_cache_tokens=8192, checkpoints_per_slot=2, draft_copies=4
    )
    fixed = SessionBytes(QWEN, Qwisp()).fixed_bytes
    memory = ContextAdmission(QWEN, lanes=5, side=side).memory(16384)
    assert memory["prompt cache"] == 3 * (8192 * 20480 + fixed)
    assert memory["checkpoints"] == 2 * 5 * fixed
    plain = cache_bytes(QWEN, 16384).total_bytes
    head = cache_bytes(QWEN, 16384, draft=True).total_bytes - plain
    assert head > 0
    assert memory["draft copies"] == 5 * (4 * fixed + head)
    without = ContextAdmission(QWEN, lanes=5).memory(16384)
    assert memory.known_bytes - without.known_bytes == sum(
        memory[name] for name in ("prompt cache", "checkpoints", "draft copies")
    )


def test_a_stored_prompt_keeps_a_window_and_not_its_ring():
    tokens = 65536
    expected = tokens * 5 * 2 * 2 * 512 * 2 + 1024 * 25 * 2 * 8 * 256 * 2
    for dialect in (Qwisp(), Fieldfare(), LlamaCpp(n_seq=4)):
        assert blob_bytes(GEMMA, tokens, dialect) == expected


def test_eight_bit_rows_cost_34_bytes_for_32_elements():
    wide = cache_bytes(GEMMA, 65536, Dialect()).total_bytes
    assert cache_bytes(GEMMA, 65536, Dialect().with_kv_bits(8)).total_bytes * 64 == wide * 34


def test_the_streaming_engine_and_the_resident_one_count_weights_differently():
    streamed = ContextAdmission(GEMMA, dialect=Fieldfare(), machine=M5).memory(4096)
    assert not streamed.terms[0].is_counted


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def document(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json").stdout)


def test_known_footprints_come_out_of_the_command_with_the_published_chunk():
    found = document(
        "--model", GEMMA.name, "--machine", M5.name, "--engine", "fieldfare"
    )  # fmt: skip
    cache = [row["cache_bytes"] / MIB for row in found["ladder"]]
    assert cache == [305, 385, 545, 865, 1505, 2145, 2785, 4065, 5345]
    assert found["chunk_tokens"] == 128
    qwen = document("--model", QWEN.name, "--machine", M1.name)
    assert round(qwen["ladder"][-1]["cache_bytes"] / MIB, 1) == 5181.4
    assert qwen["chunk_tokens"] == 256


def test_every_term_is_marked_and_they_sum():
    found = document("--model", QWEN.name, "--machine", M1.name, "--context", "64K", "--lanes", "4")
    marks = {term["provenance"] for term in found["terms"]}
    assert marks <= {"exact", "measured here", "borrowed", "unmeasured"}
    counted = [term["num_bytes"] for term in found["terms"] if term["is_counted"]]
    assert sum(counted) == found["known_bytes"] == found["total_bytes"]


def test_llama_cpp_spellings_mean_what_they_mean_there():
    found = document(
        "--model", GEMMA.name, "--machine", M1.name, "--engine", "llama.cpp",
        "-c", "32768", "-np", "4", "-ctk", "q8_0", "-ub", "512",
    )  # fmt: skip
    assert (found["context_tokens"], found["lanes"], found["chunk_tokens"]) == (8192, 4, 512)
    assert "(  8192 cells,   5 layers,  4/4 seqs), K (q8_0):  170.00 MiB" in found["log_lines"][0]
    cache = next(term for term in found["terms"] if term["term"] == "cache")
    expected = cache_bytes(GEMMA, 32768, LlamaCpp(n_seq=4, k_type="q8_0"))
    assert cache["num_bytes"] == expected.total_bytes
    shared = document(
        "--model", GEMMA.name, "--machine", M1.name, "--engine", "llama.cpp",
        "-c", "32768", "-np", "4", "-kvu",
    )  # fmt: skip
    assert shared["context_tokens"] == 32768


def test_vllm_spellings_bound_the_pool():
    found = document(
        "--model", QWEN.name, "--engine", "vllm", "--max-model-len", "32768",
        "--gpu-memory-utilization", "0.9", "--vram", "24GiB",
    )  # fmt: skip
    assert found["usable_bytes"] == int(24 * GIB * 0.9)
    assert found["unmeasured"] == ["runtime overhead"]
    assert found["log_lines"][0].startswith("GPU KV cache size: ")
    assert "Maximum concurrency for 32,768 tokens per request: " in found["log_lines"][1]


def test_vllm_takes_its_own_default_share_of_a_device_when_none_is_named():
    given = ("--model", QWEN.name, "--max-model-len", "32768", "--vram", "24GiB")
    assert document(*given, "--engine", "vllm")["usable_bytes"] == int(24 * GIB * 0.9)
    whole = ("--memory", "24GiB", "--engine", "vllm")
    assert document(*given, *whole)["usable_bytes"] == 24 * GIB


def test_tensor_parallel_devices_hold_a_share_of_weights_and_heads():
    whole, half = (
        document(
            "--model", QWEN.name, "--engine", "vllm", "--max-model-len", "32768",
            "--vram", "48GiB", "-tp", ranks, "--weights", "20GiB",
        )["terms"]
        for ranks in ("1", "2")
    )  # fmt: skip
    assert half[0]["num_bytes"] * 2 == whole[0]["num_bytes"] == 20 * GIB
    assert half[2]["num_bytes"] < whole[2]["num_bytes"]


def test_own_weight_files_are_exact(tmp_path):
    config = json.loads((CONFIGS / "llama.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "model-2.safetensors").write_bytes(b"x" * 24)
    term = document("--model", str(tmp_path), "--machine", M1.name)["terms"][0]
    assert (term["num_bytes"], term["provenance"]) == (1024, "exact")
    named = document("--model", str(tmp_path / "config.json"), "--machine", M1.name)["terms"][0]
    assert named == term


def test_a_refusal_exits_1_and_a_fit_exits_0():
    small = ("--model", QWEN.name, "--machine", "m4-16gb")
    assert run(*small, "--context", "64K").exit_code == 1
    assert run(*small, "--context", "64K", "--engine", "fieldfare").exit_code == 0
    text = run(*small, "--context", "64K").stdout
    assert text.startswith("NO. ")
    assert "--engine fieldfare" in text


def test_the_formats_say_the_same():
    arguments = ("--model", GEMMA.name, "--machine", M5.name, "--context", "64K")
    text, markdown = run(*arguments).stdout, run(*arguments, "--markdown").stdout
    rows = run(*arguments, "--csv").stdout.splitlines()
    assert text.startswith("YES. ")
    assert markdown.startswith("**YES. ")
    assert rows[0] == "context_tokens,cache_bytes,needs_bytes,verdict,prefill_s"
    assert len(rows) == 10


def test_unknown_weights_leave_the_verdict_undecided():
    name = ("--model", "qwen3.8-flash-next", "--machine", "m5-ultra-256gb")
    text, answer = run(*name).stdout, document(*name)
    assert text.startswith("UNDECIDED. ")
    assert "largest that fits" not in text
    assert "fits at 256K only if the weights take no more than " in text
    assert (answer["fits"], answer["largest_tokens"]) == (None, None)
    assert {(rung["fits"], rung["verdict"]) for rung in answer["ladder"]} == {(None, "undecided")}
    given = document(*name, "--weights", "100GiB")
    assert given["terms"][0]["num_bytes"] == 100 * GIB
    assert given["unmeasured"] == ["prefill transient"]
    assert given["fits"]
    assert all(rung["fits"] for rung in given["ladder"])


MODEL = ("--model", "qwen3.6-35b-a3b", "--machine", "m1-max-64gb")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "nope"),
        ("--model", ""),
        ("--model", "missing/config.json"),
        ("--model", "qwen3.6-35b-a3b", "--machine", "nope"),
        (*MODEL, "--memory", "0"),
        (*MODEL, "--memory", "lots"),
        (*MODEL, "--memory", "200%"),
        (*MODEL, "--context", "0"),
        (*MODEL, "--context", "-4"),
        (*MODEL, "--lanes", "0"),
        (*MODEL, "--kv-bits", "7"),
        (*MODEL, "--engine", "nope"),
        (*MODEL, "-ctk", "q8_0"),
        (*MODEL, "-c", "4096"),
        (*MODEL, "--context", "4096", "--max-model-len", "4096"),
        (*MODEL, "--vram", "8GiB"),
        (*MODEL, "--slots", "16"),
        (*MODEL, "--engine", "fieldfare", "--slots", "0"),
        (*MODEL, "--checkpoints", "-1"),
        (*MODEL, "--prompt-cache", "2"),
        (*MODEL, "--engine", "vllm", "--gpu-memory-utilization", "1.5"),
        (*MODEL, "--engine", "vllm", "--kv-bits", "4"),
        (*MODEL, "--engine", "llama.cpp", "-ctk", "q9"),
        ("--model", "qwen3.8-flash-next", "--engine", "fieldfare"),
        (*MODEL, "--json", "--csv"),
    ],
)
def test_bad_input_is_refused_in_two_lines(arguments):
    with pytest.raises(BadInput) as caught:
        run(*arguments)
    assert len(str(caught.value).splitlines()) == 2
