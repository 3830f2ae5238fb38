"""Cells of the matrix and rows of a truth table, by hand at the edges."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from qwisp.errors import BadInput
from qwisp.memory import reconcile as reconcile_module
from qwisp.memory.dialect import Terms
from qwisp.memory.matrix import Cell, matrix
from qwisp.memory.reconcile import Reconciled, part_bytes, read_truth, reconcile
from qwisp.spec.machine import MachineSpec
from qwisp.units import MIB

from .test_serving_rules import CONFIGS, GEMMA, M1, M5, OVERHEAD, QWEN


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
