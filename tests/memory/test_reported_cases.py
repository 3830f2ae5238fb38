"""Memory questions that people asked in public, answered by specs, dialects and the one rule.

Each function computes what a report printed or what its right answer is. Nothing of a case is
evaluated but its numbers; what is not computed is listed with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from qwisp.context_rule import ContextAdmission
from qwisp.memory.dialect import Dialect
from qwisp.memory.dialect_llama_cpp import LlamaCpp
from qwisp.memory.dialect_mlx_lm import MlxLm
from qwisp.memory.dialect_vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.log_lines import pool_of
from qwisp.memory.serving import Serving, serving_memory
from qwisp.memory.session_bytes import SessionBytes
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.transient import transient_bytes
from qwisp.spec.catalog import load_model
from qwisp.spec.geometry import layers_from_geometry
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, KIB, MIB

pytestmark = pytest.mark.truth
Answer = dict[str, float]
QWEN = load_model("qwen3.6-35b-a3b")


def model(*groups: dict, **sizes: int) -> ModelSpec:
    return ModelSpec(
        name="asked", family="geometry", layers=layers_from_geometry(list(groups)), **sizes
    )


def full(count: int, kv_heads: int, head_dim: int) -> dict:
    sizes = {"kv_heads": kv_heads, "k_dim": head_dim, "v_dim": head_dim}
    return {"kind": "full_attention", "count": count, **sizes}


def window(count: int, kv_heads: int, head_dim: int, tokens: int) -> dict:
    return full(count, kv_heads, head_dim) | {"kind": "sliding_window", "window": tokens}


def delta(count: int, value_heads: int, key_heads: int = 16) -> dict:
    sizes = {"value_heads": value_heads, "key_heads": key_heads, "value_dim": 128, "key_dim": 128}
    return {"kind": "gated_delta", "count": count, "conv_kernel": 4, **sizes}


def total(spec: ModelSpec, context: int, dialect: Dialect | None = None) -> int:
    return cache_bytes(spec, context, dialect or Dialect()).total_bytes


DEEPSEEK = {"kind": "mla", "count": 61, "kv_lora_rank": 512, "rope_dim": 64, "heads": 128}
DEEPSEEK |= {"k_dim": 192, "v_dim": 128}
QWEN_27B = model(
    full(16, 4, 256), delta(48, 48), hidden=5120, query_heads=24, context_max_tokens=262144
)
GEMMA_31B = model(full(10, 4, 512), window(50, 16, 256, 1024))


def kimi_linear_in_pages() -> Answer:
    mla = {"kind": "mla", "count": 7, "kv_lora_rank": 512, "rope_dim": 64}
    spec, dialect = model(mla, delta(20, 32, 32)), Vllm(tensor_parallel=2)
    pages = dialect.pages(spec.caches, spec)
    # 2.30 GiB is rounded: 318 whole pages are what the printed concurrency agrees with.
    pool = pool_of(spec, dialect, 120_000, 318 * pages.bytes_each)
    return {
        "pages": 2.30 * GIB / pages.bytes_each,
        "log": pool.tokens,
        "conc": pool.contexts,
    }


def hybrid_charged_on_all_blocks() -> Answer:
    right = cache_bytes(QWEN, 262144, LlamaCpp())
    every = total(model(full(40, 2, 256)), 262144)
    return {"right": right.full_bytes / GIB, "wrong": every / GIB}


def per_layer_kv_heads() -> Answer:
    conv = {"kind": "short_conv", "count": 10, "hidden": 2048, "l_cache": 3}
    spec = model(full(6, 8, 64), conv)
    at = {n: cache_bytes(spec, n, LlamaCpp()) for n in (4096, 32768)}
    return {
        "32k": at[32768].full_bytes / MIB,
        "4k": at[4096].full_bytes / MIB,
        "conv": at[4096].conv_bytes / KIB,
    }


def latent_or_per_head() -> Answer:
    spec = model(DEEPSEEK)
    return {
        "perhead": total(spec, 65536, LlamaCpp(mla_latent=False)) / GIB,
        "latent": total(spec, 65536, LlamaCpp()) / GIB,
        "q4": total(spec, 65536, LlamaCpp(k_type="q4_0")) / GIB,
    }


def the_file_decides() -> Answer:
    spec = model(DEEPSEEK)
    heads = cache_bytes(spec, 8192, LlamaCpp(mla_latent=False))
    latent = total(spec, 8192, LlamaCpp())
    return {"kv": heads.total_bytes / MIB, "k": heads.key_bytes / MIB, "latent": latent / MIB}


def one_formula_for_all() -> Answer:
    return {
        "g3": total(model(full(10, 16, 128), window(52, 16, 128, 1024)), 131072) / GIB,
        "q35": cache_bytes(QWEN_27B, 262144, Dialect()).full_bytes / GIB,
        "ds": total(model(DEEPSEEK), 163840) / GIB,
    }


def two_buffers_of_one_name() -> Answer:
    spec = model(full(5, 4, 256), window(29, 4, 256, 1024))
    return {"kv": total(spec, 131072, LlamaCpp()) / MIB}


def windows_kept_whole() -> Answer:
    whole, ring = LlamaCpp(swa_full=True), LlamaCpp()
    return {
        "pt": total(GEMMA_31B, 131072, whole) / 131072,
        "full": total(GEMMA_31B, 131072, whole) / GIB,
        "win": total(GEMMA_31B, 131072, ring) / GIB,
        "8kfull": total(GEMMA_31B, 8192, whole) / GIB,
        "8kwin": total(GEMMA_31B, 8192, ring) / GIB,
    }


def ring_for_a_short_context() -> Answer:
    ring = [cache_bytes(GEMMA_31B, n, Dialect()).ring_bytes for n in (131072, 128)]
    return {"r": ring[0] / ring[1]}


def granite_hybrid() -> Answer:
    mamba = {"kind": "mamba2", "count": 36, "d_inner": 8192, "head_dim": 64, "d_state": 128}
    spec = model(full(4, 8, 128), mamba | {"groups": 1, "conv_kernel": 4})
    found = cache_bytes(spec, 131072, LlamaCpp())
    return {
        "state": found.fixed_bytes / MIB,
        "kv": found.full_bytes / GIB,
        "wrong": total(model(full(40, 8, 128)), 131072) / GIB,
    }


def states_for_drafts() -> Answer:
    def state(n_seq: int, copies: int) -> float:
        dialect = LlamaCpp(n_seq=n_seq, draft_copies=copies)
        return cache_bytes(QWEN_27B, 8192, dialect).fixed_bytes / MIB

    return {"a": state(1, 2), "b": state(4, 2), "c": state(1, 6)}


def checkpoints_in_host_memory() -> Answer:
    serving = Serving(
        model=QWEN_27B,
        dialect=LlamaCpp(n_seq=4),
        lanes=4,
        side=SideBudgets(checkpoints_per_slot=32),
    )
    return {"gib": serving_memory(serving, 8192)["checkpoints"] / GIB}


def scores(spec: ModelSpec, context: int, chunk: int, *, is_quantised: bool = False) -> int:
    """Return what a chunk's scores take: what doubling the chunk adds."""
    peaks = [
        transient_bytes(spec, context, n, is_quantised=is_quantised) for n in (chunk, 2 * chunk)
    ]
    return peaks[1] - peaks[0]


def quantised_cache_that_peaks_higher() -> Answer:
    spec = model(full(36, 8, 128), hidden=2560, query_heads=32)
    assert transient_bytes(spec, 32768, 2048) == 0
    return {
        "per1k": scores(spec, 1024, 2048, is_quantised=True) / 1e6,
        "kv32k": total(spec, 32768) / MIB,
    }


def window_aware_or_not() -> Answer:
    spec = model(full(12, 8, 64), window(12, 8, 64, 128))
    return {
        "bad": total(spec, 131072, LlamaCpp(swa_full=True)) / MIB,
        "good": total(spec, 131072, LlamaCpp()) / MIB,
    }


def context_that_was_configured() -> Answer:
    ceiling = int(48.84 * GIB)
    machine = MachineSpec(name="m", title="m", memory_bytes=64 * GIB, limit_bytes=ceiling)
    rule = ContextAdmission(QWEN_27B, machine, weights=int(14.95 * GIB), dialect=MlxLm())
    assert rule.check(208384).rule == "machine memory"
    return {
        "peak": rule.memory(208384).known_bytes / GIB,
        "16k": rule.memory(16384).known_bytes / GIB,
        "max": rule.largest(),
    }


def guard_that_runs_backwards() -> Answer:
    spec = model(full(48, 4, 128))
    return {
        "pt": cache_bytes(spec, 1, Dialect()).bytes_per_token,
        "a": total(spec, 30 + 256) / 1e6,
        "b": total(spec, 5300 + 4000) / 1e9,
    }


def unfused_prefill() -> Answer:
    spec = model(full(1, 4, 256), hidden=5120, query_heads=24)
    return {
        "fp16": scores(spec, 327680, 2048) / 1e9,
        "128k": scores(spec, 131072, 2048) / 1e9,
    }


def chunk_that_fits() -> Answer:
    spec = model(full(1, 4, 256), hidden=5120, query_heads=64)
    return {"t": scores(spec, 74240, 2048) / MIB, "h": scores(spec, 74240, 1024) / MIB}


def slope_of_the_peak() -> Answer:
    serving = Serving(model=QWEN, dialect=MlxLm(), weights_bytes=0)
    low, high = (serving_memory(serving, n).known_bytes for n in (8192, 196608))
    slope = (high - low) / (196608 - 8192)
    return {"model": slope, "err": slope / 88587 - 1}


def eight_long_sequences() -> Answer:
    spec = model(full(16, 4, 256), context_max_tokens=131072)
    machine = MachineSpec(name="m", title="m", memory_bytes=64 * 10**9)
    assert ContextAdmission(spec, machine, weights=0, lanes=8).check(131072) is not None
    return {
        "one": total(spec, 131072) / 1e9,
        "eight": serving_memory(Serving(model=spec, lanes=8), 131072)["cache"] / 1e9,
    }


def prompt_cache_without_a_cap() -> Answer:
    spec = model(full(8, 4, 256), delta(24, 32))
    return {"tok": 26.28e9 / cache_bytes(spec, 1, Dialect()).bytes_per_token}


def refusal_that_says_what_would_fit() -> Answer:
    spec = model(full(12, 1, 128), window(36, 1, 128, 8192), context_max_tokens=1048576)
    machine = MachineSpec(name="m", title="m", memory_bytes=16 * GIB, limit_bytes=int(9.97 * GIB))
    rule = ContextAdmission(spec, machine, prefill="unchunked", weights=0)
    refusal = rule.check(1048576)
    assert "chunked prefill" in {offer.change for offer in refusal.offers}
    return {
        "all": rule.unchunked_kv_bytes(1048576) / GIB,
        "chunked": total(spec, 1048576) / GIB,
    }


def eligibility_and_allocation() -> Answer:
    session = SessionBytes(QWEN)
    rows = {n: session.bytes(n) - session.fixed_bytes for n in (16384, 262144)}
    return {
        "a": rows[16384] / 1e6,
        "b": rows[262144] / 1e9,
        "n25": 8192 * MIB // rows[16384],
        "n1": 8192 * MIB // rows[262144],
    }


def ring_that_is_flat() -> Answer:
    spec = model(window(1, 1, 256, 512))
    sizes = {total(spec, n, MlxLm(chunk_tokens=512)) for n in (4096, 16384, 65536)}
    (flat,) = sizes
    return {"ring": flat}


def needle_that_passes_and_dies() -> Answer:
    return {
        "kv": cache_bytes(QWEN, 131072, Dialect()).full_bytes / 1e9,
        "sc": scores(QWEN, 131072, 2048) / 1e9,
    }


def limit_that_was_not_allocated() -> Answer:
    spec = model(full(28, 8, 128))
    return {"alloc": total(spec, 131072) / GIB, "one": total(spec, 40960) / GIB}


COMPUTED: dict[str, Callable[[], Answer]] = {
    "C02": kimi_linear_in_pages,
    "C08": hybrid_charged_on_all_blocks,
    "C09": per_layer_kv_heads,
    "C11": latent_or_per_head,
    "C12": the_file_decides,
    "C13": one_formula_for_all,
    "C15": two_buffers_of_one_name,
    "C16": windows_kept_whole,
    "C18": ring_for_a_short_context,
    "C19": granite_hybrid,
    "C21": states_for_drafts,
    "C22": checkpoints_in_host_memory,
    "C23": quantised_cache_that_peaks_higher,
    "C25": window_aware_or_not,
    "C27": context_that_was_configured,
    "C29": guard_that_runs_backwards,
    "C32": unfused_prefill,
    "C33": chunk_that_fits,
    "C34": slope_of_the_peak,
    "C35": eight_long_sequences,
    "C36": prompt_cache_without_a_cap,
    "C43": refusal_that_says_what_would_fit,
    "C49": eligibility_and_allocation,
    "C63": ring_that_is_flat,
    "C78": needle_that_passes_and_dies,
    "C79": limit_that_was_not_allocated,
}
NOT_COMPUTED = {
    "C03": "that build cut blocks without aligning them and kept states in 16 bits",
    "C04": "a share of a printed pool; the layers are not given",
    "C42": "two measured figures of two instruments, which are never compared",
    "C15 tot": "adds weights and a compute buffer as printed",
    "C18 loss": "a quotient of two printed pools",
    "C23 r": "a quotient of two measured peaks",
    "C34 slope": "measured; the model's slope is held against it",
    "C63 err": "a measured slope against an expected one",
}


@pytest.fixture(scope="module")
def cases(truth_dir) -> dict[str, dict]:
    asked = json.loads((truth_dir / "cases.json").read_text())
    return {case["id"]: case for case in asked}


@pytest.mark.parametrize("case", COMPUTED)
def test_the_right_answer_is_computed(case: str, cases: dict[str, dict]):
    answer = COMPUTED[case]()
    checks = {check["name"]: check for check in cases[case]["python_checks"]}
    missing = {name for name in checks if f"{case} {name}" not in NOT_COMPUTED}
    assert missing == answer.keys()
    for name, found in answer.items():
        expected, tolerance = checks[name]["reported_or_expected"], checks[name]["tol"]
        assert abs(found - expected) <= tolerance, (name, found, expected, tolerance)


def test_every_case_about_memory_is_computed_or_listed_with_why(cases: dict[str, dict]):
    about = {
        id
        for id, case in cases.items()
        if {1, 2} & set(case["capabilities"]) and case.get("python_checks")
    }
    assert about == COMPUTED.keys() | {id for id in NOT_COMPUTED if " " not in id}
    assert len(COMPUTED) >= 20
