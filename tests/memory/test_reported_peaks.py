"""Reports about peaks, refusals and budgets, answered by the rule, the transient and side budgets.

Each function computes what a report printed or what its right answer is; single checks that are not
computed are listed with the reason. What only the caches decide is asked elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from qwisp.memory.admission import ContextAdmission
from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.transient import transient_bytes
from qwisp.spec.catalog import load_model
from qwisp.spec.geometry import layers_from_geometry
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB

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


QWEN_27B = model(
    full(16, 4, 256), delta(48, 48), hidden=5120, query_heads=24, context_max_tokens=262144
)
GEMMA_31B = model(full(10, 4, 512), window(50, 16, 256, 1024))


def ring_for_a_short_context() -> Answer:
    ring = [cache_bytes(GEMMA_31B, n, Dialect()).ring_bytes for n in (131072, 128)]
    return {"r": ring[0] / ring[1]}


def checkpoints_in_host_memory() -> Answer:
    serving = ContextAdmission(
        QWEN_27B,
        dialect=LlamaCpp(n_seq=4),
        lanes=4,
        side=SideBudgets(checkpoints_per_slot=32),
    )
    return {"gib": serving.memory(8192)["checkpoints"] / GIB}


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
    serving = ContextAdmission(QWEN, dialect=MlxLm(), weights=0)
    low, high = (serving.memory(n).known_bytes for n in (8192, 196608))
    slope = (high - low) / (196608 - 8192)
    return {"model": slope, "err": slope / 88587 - 1}


def eight_long_sequences() -> Answer:
    spec = model(full(16, 4, 256), context_max_tokens=131072)
    machine = MachineSpec(name="m", title="m", memory_bytes=64 * 10**9)
    assert ContextAdmission(spec, machine, weights=0, lanes=8).check(131072) is not None
    return {
        "one": total(spec, 131072) / 1e9,
        "eight": ContextAdmission(spec, lanes=8).memory(131072)["cache"] / 1e9,
    }


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


COMPUTED: dict[str, Callable[[], Answer]] = {
    "C18": ring_for_a_short_context,
    "C22": checkpoints_in_host_memory,
    "C23": quantised_cache_that_peaks_higher,
    "C27": context_that_was_configured,
    "C32": unfused_prefill,
    "C33": chunk_that_fits,
    "C34": slope_of_the_peak,
    "C35": eight_long_sequences,
    "C43": refusal_that_says_what_would_fit,
    "C63": ring_that_is_flat,
    "C78": needle_that_passes_and_dies,
}
NOT_COMPUTED = {
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
