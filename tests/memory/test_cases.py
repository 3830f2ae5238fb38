"""Public trouble cases about memory: the right answer comes out of specs and dialects.

Each check of a case is computed here from the model's config and an allocator's rules, never from
the case's own formula, and compared with the figure on record.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.pool import rank_rows
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.session_bytes import SessionBytes
from qwisp.memory.transient import transient_bytes
from qwisp.spec.geometry import layers_from_geometry
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB
from tests.memory.case_models import (
    DEEPSEEK_V3,
    GEMMA3_4B,
    GEMMA3_27B,
    GEMMA4_31B,
    GPT_OSS_20B,
    GRANITE4_H_SMALL,
    KIMI_LINEAR,
    LFM2_1B,
    QWEN3_1B7,
    QWEN3_30B_A3B,
    QWEN3_NEXT_80B,
    QWEN35_4B,
    QWEN35_27B,
    QWEN36_35B,
    SCOUT_GEOMETRY,
    SIXTY_FOUR_HEADS,
    spec_of,
)

pytestmark = pytest.mark.truth


def total(config, tokens, dialect=None, **changes):
    return cache_bytes(spec_of(config, **changes), tokens, dialect or Dialect()).total_bytes


def per_token(config, dialect=None):
    return cache_bytes(spec_of(config), 1, dialect or Dialect()).bytes_per_token


def fixed(config, dialect):
    return cache_bytes(spec_of(config), 1, dialect).fixed_bytes


def scores(config, tokens, chunk=2048):
    """Return the attention scores alone: the transient without a chunk's inputs."""
    return transient_bytes(replace(spec_of(config), hidden=0), tokens, chunk)


def kimi_pages():
    spec = spec_of(KIMI_LINEAR)
    pages = Vllm(tensor_parallel=2).pages(spec.caches, spec)
    return {
        "pages": 2.30 * GIB / pages.bytes_each,
        "log": pages.printed_tokens(319),
        "conc": 318 / pages.of_sequence(120_000),
    }


def next_pages():
    """A state needs 536 two-byte rows. With one-byte rows a block holds twice the tokens for the
    same state, so the pool has half the pages and prints the same size: 339 of them fit the log.
    """
    spec = spec_of(QWEN3_NEXT_80B)
    exact = Vllm(tensor_parallel=2)
    delta, attention = spec.layers[0], spec.layers[3]
    state, row = sum(exact.recurrent_terms(delta, spec)), sum(exact.rows(attention, spec))
    small = replace(exact, k_type="fp8", v_type="fp8").pages(spec.caches, spec)
    assert small.block_tokens == 2 * state / row
    return {
        "block": state / row,
        "log": small.printed_tokens(339),
        "conc": 339 / small.of_sequence(215_040),
    }


def gemma4_31b():
    swa_full, windowed = LlamaCpp(swa_full=True), LlamaCpp()
    spec = spec_of(GEMMA4_31B)
    return {
        "pt": (
            cache_bytes(spec, 512, swa_full).total_bytes
            - cache_bytes(spec, 256, swa_full).total_bytes
        )
        / 256,
        "full": total(GEMMA4_31B, 131072, swa_full) / GIB,
        "win": total(GEMMA4_31B, 131072, windowed) / GIB,
        "8kfull": total(GEMMA4_31B, 8192, swa_full) / GIB,
        "8kwin": total(GEMMA4_31B, 8192, windowed) / GIB,
    }


def deepseek_gib(tokens, **options):
    return total(DEEPSEEK_V3, tokens, LlamaCpp(**options)) / GIB


def per_head_r1():
    spec, unfolded = spec_of(DEEPSEEK_V3), LlamaCpp(mla_latent=False)
    footprint = cache_bytes(spec, 8192, unfolded)
    return {
        "kv": footprint.total_bytes / MIB,
        "k": footprint.key_bytes / MIB,
        "latent": total(DEEPSEEK_V3, 8192, LlamaCpp()) / MIB,
    }


def six_architectures():
    return {
        "g3": total(GEMMA3_27B, 131072) / GIB,
        "q35": cache_bytes(spec_of(QWEN35_27B), 262144, Dialect()).full_bytes / GIB,
        "ds": total(DEEPSEEK_V3, 163840) / GIB,
    }


def two_cache_lines():
    kv = total(GEMMA3_4B, 131072, LlamaCpp()) / MIB
    return {"kv": kv, "tot": 2367 + kv + 203}


def granite():
    spec = spec_of(GRANITE4_H_SMALL)
    everywhere = spec_of(GRANITE4_H_SMALL, layer_types=["attention"] * 40)
    return {
        "state": cache_bytes(spec, 131072, LlamaCpp()).fixed_bytes / MIB,
        "kv": cache_bytes(spec, 131072, LlamaCpp()).full_bytes / GIB,
        "wrong": cache_bytes(everywhere, 131072, LlamaCpp()).full_bytes / GIB,
    }


def peak_of_27b():
    """Weights as reported, one state, and per token a row and the transient of one chunk."""
    spec = spec_of(QWEN35_27B)
    state = fixed(QWEN35_27B, LlamaCpp())
    token = per_token(QWEN35_27B) + transient_bytes(spec, 1, 2048)
    return {
        "peak": 14.95 + (state + 208_384 * token) / GIB,
        "16k": 14.95 + (state + 16_384 * token) / GIB,
        "max": ((48.84 - 14.95) * GIB - state) / token,
    }


def scout():
    spec = ModelSpec(name="scout", family="geometry", layers=layers_from_geometry(SCOUT_GEOMETRY))
    ranked = replace(spec, layers=tuple(rank_rows(layer, 8) for layer in spec.layers))
    return {
        "all": cache_bytes(spec, 1_048_576, Sglang(tensor_parallel=8)).total_bytes / GIB,
        "chunked": cache_bytes(ranked, 1_048_576, Dialect()).total_bytes / GIB,
    }


def lane_arenas():
    session = SessionBytes(spec_of(QWEN36_35B))
    small, large = (session.bytes(n) - session.fixed_bytes for n in (16_384, 262_144))
    return {
        "a": small / 1e6,
        "b": large / 1e9,
        "n25": 8192 * MIB // small,
        "n1": 8192 * MIB // large,
    }


def slope_of_35b():
    measured = (38.0 - 21.7) * 1e9 / 184_000
    model = per_token(QWEN36_35B) + transient_bytes(spec_of(QWEN36_35B), 1, 2048)
    return {"slope": measured, "model": model, "err": model / measured - 1}


COMPUTED = {
    "C02": kimi_pages,
    "C03": next_pages,
    "C08": lambda: {
        "right": cache_bytes(spec_of(QWEN36_35B), 262144, LlamaCpp()).full_bytes / GIB,
        "wrong": total(QWEN36_35B, 262144, LlamaCpp(), full_attention_interval=1) / GIB,
    },
    "C09": lambda: {
        "32k": cache_bytes(spec_of(LFM2_1B), 32768, LlamaCpp()).full_bytes / MIB,
        "4k": cache_bytes(spec_of(LFM2_1B), 4096, LlamaCpp()).full_bytes / MIB,
        "conv": fixed(LFM2_1B, LlamaCpp()) / 1024,
    },
    "C11": lambda: {
        "perhead": deepseek_gib(65536, mla_latent=False),
        "latent": deepseek_gib(65536),
        "q4": deepseek_gib(65536, k_type="q4_0"),
    },
    "C12": per_head_r1,
    "C13": six_architectures,
    "C15": two_cache_lines,
    "C16": gemma4_31b,
    "C19": granite,
    "C21": lambda: {
        "a": fixed(QWEN35_27B, LlamaCpp(draft_copies=2)) / MIB,
        "b": fixed(QWEN35_27B, LlamaCpp(n_seq=4, draft_copies=2)) / MIB,
        "c": fixed(QWEN35_27B, LlamaCpp(draft_copies=6)) / MIB,
    },
    "C22": lambda: {"gib": 32 * fixed(QWEN35_27B, LlamaCpp(n_seq=4)) / GIB},
    "C25": lambda: {
        "bad": total(GPT_OSS_20B, 131072, LlamaCpp(swa_full=True)) / MIB,
        "good": total(GPT_OSS_20B, 131072, LlamaCpp()) / MIB,
    },
    "C27": peak_of_27b,
    "C29": lambda: {
        "pt": per_token(QWEN3_30B_A3B),
        "a": total(QWEN3_30B_A3B, 30 + 256) / 1e6,
        "b": total(QWEN3_30B_A3B, 5300 + 4000) / 1e9,
    },
    "C32": lambda: {
        "fp16": scores(QWEN35_27B, 327_680) / 1e9,
        "128k": scores(QWEN35_27B, 131_072) / 1e9,
    },
    "C33": lambda: {
        "t": scores(SIXTY_FOUR_HEADS, 74_240) / MIB,
        "h": scores(SIXTY_FOUR_HEADS, 74_240, 1024) / MIB,
    },
    "C34": slope_of_35b,
    "C35": lambda: {
        "one": per_token(QWEN35_27B) * 131_072 / 1e9,
        "eight": 8 * per_token(QWEN35_27B) * 131_072 / 1e9,
    },
    "C36": lambda: {"tok": 26.28e9 / per_token(QWEN35_4B)},
    "C43": scout,
    "C49": lane_arenas,
    "C78": lambda: {
        "kv": per_token(QWEN36_35B) * 131_072 / 1e9,
        "sc": scores(QWEN36_35B, 131_072) / 1e9,
    },
    "C79": lambda: {
        "alloc": total(QWEN3_1B7, 131_072, LlamaCpp(n_seq=4)) / GIB,
        "one": total(QWEN3_1B7, spec_of(QWEN3_1B7).context_max_tokens) / GIB,
    },
}

NOT_COMPUTED = {
    "C04": "the report gives shares of a pool, not the model whose pages they are",
    "C18": "one of its two checks is a ratio of two printed pools, whose profile is not given",
    "C23": "one check is a ratio of two measured peaks; its transient leaves out the rows in full",
    "C42": "readings of instruments, with no model behind them",
    "C63": "one check compares two measured slopes of a model that is not named",
}


@pytest.fixture(scope="module")
def cases(request):
    path = request.getfixturevalue("truth_dir") / "cases.json"
    return {
        case["id"]: case
        for case in json.loads(path.read_text())
        if {1, 2} & set(case["capabilities"]) and case.get("python_checks")
    }


def test_every_case_is_computed_or_says_why_not(cases):
    assert set(cases) == set(COMPUTED) | set(NOT_COMPUTED)
    assert len(COMPUTED) >= 20


@pytest.mark.parametrize("case", sorted(COMPUTED))
def test_case_comes_out_of_specs_and_dialects(cases, case):
    computed = COMPUTED[case]()
    checks = cases[case]["python_checks"]
    assert set(computed) == {check["name"] for check in checks}
    for check in checks:
        # Reports round: each check on record carries the tolerance of its printed figure.
        difference = abs(computed[check["name"]] - check["reported_or_expected"])
        assert difference <= check["tol"] + 1e-9, (check["name"], computed[check["name"]])
