"""The answer of `fit`, cells of the matrix and rows of a truth table, by hand at the edges."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from math import nextafter
from pathlib import Path

import pytest

from qwisp.context_rule import ContextAdmission
from qwisp.cost import load_cost
from qwisp.errors import BadInput
from qwisp.memory import reconcile as reconcile_module
from qwisp.memory.dialect import Terms
from qwisp.memory.dialect_fieldfare import Fieldfare
from qwisp.memory.dialect_llama_cpp import LlamaCpp
from qwisp.memory.dialect_mlx_lm import MlxLm
from qwisp.memory.dialect_sglang import Sglang
from qwisp.memory.dialect_vllm import Vllm
from qwisp.memory.fit import fit
from qwisp.memory.matrix import Cell, matrix
from qwisp.memory.reconcile import Reconciled, part_bytes, read_truth, reconcile
from qwisp.spec.catalog import load_model
from qwisp.spec.layers import FullAttention
from qwisp.spec.machine import MachineSpec, load_machine
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB

CONFIGS = Path(__file__).parents[1] / "data/configs"
GEMMA = load_model("gemma-4-26b-a4b")
QWEN = load_model("qwen3.6-35b-a3b")
M1, M5 = load_machine("m1-max-64gb"), load_machine("m5-max-36gb")
# Process and Metal scratch as data/calibration/memory-fieldfare.json has them.
OVERHEAD = 370_668_186 + 33_554_432


def spec(*layers: object, hidden: int | None = 512, query_heads: int | None = 8) -> ModelSpec:
    return ModelSpec(
        name="by hand",
        family="geometry",
        layers=tuple(layers),
        hidden=hidden,
        query_heads=query_heads,
        context_max_tokens=262144,
    )


# 2,048 bytes a token, heads of 64: nothing is written out beside the cache.
PLAIN = spec(*[FullAttention(kv_heads=2, k_dim=64, v_dim=64)] * 4)
# 1,024 bytes a token, heads of 256: 2 x (512 + 8 x chunk) bytes of scores and inputs a token.
UNFUSED = spec(FullAttention(kv_heads=1, k_dim=256, v_dim=256))


def box(left_bytes: int, **changes: object) -> MachineSpec:
    """A machine with so many bytes beside this engine's overhead."""
    given = {"name": "box", "title": "box", "memory_bytes": 2**40, "limit_name": "box"}
    return MachineSpec(**given | {"limit_bytes": OVERHEAD + left_bytes} | changes)


# ---- fit ---------------------------------------------------------------------------------------


def test_a_rung_that_takes_all_the_patience_is_still_recommended():
    """On this calibration 32K take 195.56 s and 64K take 639.96 s."""
    rule, cost = ContextAdmission(QWEN, M1), load_cost(QWEN.name, M1.name)
    seconds = {rung.context_tokens: rung.prefill_s for rung in fit(rule, cost=cost).rungs}
    assert (round(seconds[32768], 2), round(seconds[65536], 2)) == (195.56, 639.96)
    exact = fit(rule, cost=cost, patience_s=seconds[32768]).recommended
    assert exact.context_tokens == 32768
    assert fit(rule, cost=cost, patience_s=nextafter(seconds[32768], 0)).recommended[0] == 16384
    usual = fit(rule, cost=cost).recommended
    assert usual.context_tokens == 32768
    assert "read in 196 s; the next rung takes 640 s, above 300: time is" in usual.why
    least = fit(rule, cost=cost, patience_s=1).recommended
    assert (least.context_tokens, "longer than 1 s" in least.why) == (4096, True)
    most = fit(rule, cost=cost, patience_s=1e9).recommended
    assert (most.context_tokens, "the largest rung that fits" in most.why) == (262144, True)


def test_what_memory_leaves_is_recommended_only_below_the_rungs_or_with_times():
    below = fit(ContextAdmission(PLAIN, box(1000 * 2048), weights=0))
    assert below.recommended == (1000, "the largest that fits, below every rung")
    assert (below.context_tokens, below.largest_tokens, below.refusal) == (1000, 1000, None)
    none = fit(ContextAdmission(PLAIN, box(2047), weights=0))
    assert none.recommended == (None, "no context fits")
    assert (none.context_tokens, none.largest_tokens) == (4096, None)
    assert none.refusal is not None
    untimed = fit(ContextAdmission(PLAIN, box(5000 * 2048), weights=0))
    assert (untimed.recommended.context_tokens, untimed.context_tokens) == (None, 5000)
    asked = fit(ContextAdmission(PLAIN, box(5000 * 2048), weights=0), 7)
    assert asked.context_tokens == 7
    assert asked.usable_bytes == OVERHEAD + 5000 * 2048
    assert fit(ContextAdmission(PLAIN, weights=0)).usable_bytes is None


def test_every_rung_has_its_cache_and_its_need():
    found = fit(ContextAdmission(PLAIN, box(3 * 8192 * 2048), weights=0, lanes=3))
    rungs = {rung.context_tokens: rung for rung in found.rungs}
    assert rungs[8192].cache_bytes == 3 * 8192 * 2048
    assert rungs[8192].needs_bytes == OVERHEAD + 3 * 8192 * 2048
    assert [rung.fits for rung in found.rungs] == [True] * 2 + [False] * 7
    assert (rungs[8192].broken_rule, rungs[16384].broken_rule) == (None, "machine memory")
    assert all(rung.prefill_s is None for rung in found.rungs)


def test_a_fit_is_decided_unless_it_fits_without_known_weights():
    unknown = ContextAdmission(PLAIN, box(8192 * 2048))
    assert not fit(unknown, 8192).is_decided
    assert fit(unknown, 8193).is_decided
    assert fit(replace(unknown, weights=0), 8192).is_decided
    assert fit(replace(unknown, weights=0, dialect=MlxLm()), 4096).is_decided


@pytest.mark.parametrize(("left", "chunk"), [(0, 512), (-1, 256)])
def test_the_planned_chunk_is_the_widest_beside_everything_else(left, chunk):
    cache, peak = 4096 * 1024, 4096 * 2 * (512 + 8 * 512)
    rule = ContextAdmission(UNFUSED, box(7 + cache + peak + left), weights=7)
    assert fit(rule, 4096).chunk.chunk_tokens == chunk
    assert fit(replace(rule, machine=None), 4096).chunk is None
    assert fit(replace(rule, prefill="unchunked"), 4096).chunk is None
    assert fit(rule, 262144).chunk is None, "it is refused"
    for dialect in (Fieldfare(), Vllm(), Sglang(), LlamaCpp()):
        assert fit(replace(rule, dialect=dialect), 4096).chunk is None
    small = fit(replace(rule, dialect=MlxLm(chunk_tokens=64)), 4096).chunk
    assert small.chunk_tokens >= chunk, "its overhead is not known and not counted"


def test_a_pool_is_what_the_weights_leave():
    device = box(0, memory_kind="vram", limit_bytes=GIB + 1000 * 2048)
    vllm = fit(ContextAdmission(PLAIN, device, weights=GIB, dialect=Vllm()), 496)
    assert vllm.log_lines == (
        "GPU KV cache size: 992 tokens",  # 62 whole blocks of 16
        "Maximum concurrency for 496 tokens per request: 2.00x",
    )
    assert fit(ContextAdmission(PLAIN, None, weights=GIB, dialect=Vllm()), 496).log_lines == ()
    assert fit(ContextAdmission(PLAIN, device, dialect=Vllm()), 496).log_lines == ()
    lanes = ContextAdmission(PLAIN, device, weights=0, dialect=LlamaCpp(n_seq=2), lanes=2)
    assert "(   512 cells,   4 layers,  2/2 seqs)" in fit(lanes, 512).log_lines[0]


# ---- cells and rows ----------------------------------------------------------------------------


def cell(needs: int | None, usable: int) -> Cell:
    return Cell("m", "box", 1, 1, needs, "exact", usable, None, "rss")


def test_a_cell_fits_to_the_last_byte():
    assert [cell(n, 10).fits for n in (9, 10, 11, None)] == [True, True, False, None]
    assert [cell(n, 10).headroom_bytes for n in (9, 10, 11, None)] == [1, 0, -1, None]


def test_a_cell_has_the_whole_prompt_the_slots_asked_and_its_own_measurement():
    (least, *_) = matrix([GEMMA.name], [M5])
    assert (least.context_tokens, least.cache_bytes) == (4096, 305 * MIB)
    assert least.needs_bytes == 16 * 30 * 3_358_720 + OVERHEAD + 4096 * 245 + 305 * MIB
    assert least.usable_bytes == M5.usable_bytes
    wide = matrix([GEMMA.name], [M5], slots_per_layer=17)[0]
    assert wide.needs_bytes - least.needs_bytes == 30 * 3_358_720

    def measured(machine: MachineSpec, **given: int) -> set[int]:
        return {
            c.context_tokens
            for c in matrix([GEMMA.name, QWEN.name], [machine], **given)
            if c.measured_bytes
        }

    rungs = {65536, 98304, 131072, 196608, 262144}
    assert measured(M5) == measured(M5, slots_per_layer=16) == rungs
    assert measured(M5, slots_per_layer=15) == measured(M1) == set()
    assert {c.instrument for c in matrix([GEMMA.name], [M5])} == {"phys_footprint"}


def test_rungs_end_at_the_native_maximum(tmp_path):
    config = json.loads((CONFIGS / "llama.json").read_text())
    for native, rungs in ((8191, [4096]), (8192, [4096, 8192]), (4095, [])):
        path = tmp_path / f"{native}.json"
        path.write_text(json.dumps({**config, "max_position_embeddings": native}))
        assert [c.context_tokens for c in matrix([str(path)], [M5])] == rungs
    assert {c.needs_bytes for c in matrix([str(path), "qwen3.8-flash-next"], [M5])} == {None}


@pytest.mark.parametrize(
    ("measured", "tolerance", "verdict"),
    [
        ("1.5", "0.5", "reproduced"),
        ("1.5001", "0.5", "missed"),
        ("0.5", "0.5", "reproduced"),
        ("0.4999", "0.5", "missed"),
        ("1", "0", "reproduced"),
    ],
)
def test_a_row_is_reproduced_up_to_its_tolerance(measured, tolerance, verdict):
    row = Reconciled(
        id="a",
        engine="qwisp",
        model="m",
        part="all",
        predicted_bytes=MIB,
        measured_mib=Decimal(measured),
        tolerance_mib=Decimal(tolerance),
    )
    assert row.verdict == verdict
    assert row.difference_mib == 1 - Decimal(measured)
    assert replace(row, predicted_bytes=None).verdict == "not modelled"


def test_a_part_is_what_its_log_line_is_about():
    terms = Terms(1, 2, 4, 8, 16, 32, 64)
    parts = {
        part: part_bytes(terms, part) for part in ("all", "full", "sliding", "state", "k", "v")
    }
    assert parts == {"all": 127, "full": 19, "sliding": 12, "state": 96, "k": 5, "v": 10}


ROW = {
    "engine": "llama.cpp",
    "model": "by hand",
    "geometry": [{"kind": "full_attention", "count": 2, "kv_heads": 1, "k_dim": 512, "v_dim": 512}],
    "context": 1024,
    "part": "all",
    "measured_mib": 4,  # 1,024 cells x 2 layers x 1,024 elements in 2 bytes
    "tolerance_mib": 0,
}
DELTA = {
    "kind": "gated_delta",
    "count": 1,
    "value_heads": 1,
    "key_heads": 1,
    "value_dim": 512,
    "key_dim": 512,
    "conv_kernel": 1,
}


@pytest.mark.parametrize(
    ("change", "mib"),
    [
        ({}, 4),
        ({"part": "k"}, 2),
        ({"k_type": "f32"}, 6),
        ({"v_type": "q8_0"}, 2 + 2 * 34 / 64),
        ({"n_seq": 4}, 4),  # a share of the context each
        ({"n_seq": 8}, 8),  # 128 cells each, padded to 256
        ({"n_seq": 8, "options": {"unified": True}}, 4),
        ({"context": 1025}, 5),
        ({"engine": "qwisp", "context": 1025}, 4 + 4 / 1024),
        ({"engine": "qwisp", "options": {"unified": False, "draft_copies": 0}}, 4),
        ({"engine": "fieldfare", "n_seq": 1, "options": {"chunk": 64}}, 4),
        ({"engine": "vllm", "context": None, "options": {"pool_tokens": 512}}, 2),
        ({"engine": "vllm", "n_seq": 2, "options": {"tensor_parallel": 1}}, 8),
        ({"geometry": [DELTA], "part": "state", "context": None}, 1),
        ({"geometry": [DELTA], "part": "state", "options": {"draft_copies": 2}}, 3),
    ],
)
def test_a_row_is_predicted_from_its_fields(change, mib):
    (found,) = reconcile([{**ROW, **change}])
    assert (found.reason, found.predicted_bytes) == ("", mib * MIB)
    assert found.verdict == ("reproduced" if mib == 4 else "missed")
    assert found.id == "0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"context": None}, "no context is given"),
        ({"engine": "vllm", "context": None}, "no context is given"),
        ({"engine": "qwisp", "n_seq": 2}, "qwisp holds one sequence, not 2"),
        ({"engine": "qwisp", "options": {"draft_copies": 1}}, "has no option 'draft_copies'"),
        ({"engine": "vllm", "options": {"swa_full": True}}, "has no option 'swa_full'"),
        ({"engine": "vllm", "options": {"chunk": 5}}, "has no option 'chunk'"),
    ],
)
def test_a_row_that_its_engine_cannot_mean_is_not_modelled(change, reason):
    (found,) = reconcile([{**ROW, **change}])
    assert found.verdict == "not modelled"
    assert reason in found.reason


@pytest.mark.parametrize("value", [None, True, "4", -1, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["measured_mib", "tolerance_mib"])
def test_a_size_is_a_finite_number_of_mib(key, value):
    with pytest.raises(BadInput, match=f"row 0: {key}"):
        reconcile([{**ROW, key: value}])
    assert reconcile([{**ROW, "tolerance_mib": 0}])[0].verdict == "reproduced"


def test_a_table_is_read_up_to_its_limit(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW]))
    monkeypatch.setattr(reconcile_module, "MAX_TRUTH_BYTES", path.stat().st_size)
    assert read_truth(path) == [ROW]
    monkeypatch.setattr(reconcile_module, "MAX_TRUTH_BYTES", path.stat().st_size - 1)
    with pytest.raises(BadInput, match="larger"):
        read_truth(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_truth(tmp_path / "missing.json")
