"""Cache sizes published for the catalog models come out of layer geometry, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.catalog import load_model
from qwisp.units import GIB, MIB

RING_LADDER_MIB = {
    4: 305,
    8: 385,
    16: 545,
    32: 865,
    64: 1505,
    96: 2145,
    128: 2785,
    192: 4065,
    256: 5345,
}


@pytest.mark.parametrize(("context_k", "mib"), RING_LADDER_MIB.items())
def test_gemma_with_a_ring_is_a_whole_number_of_mib(context_k, mib):
    spec = load_model("gemma-4-26b-a4b")
    assert cache_bytes(spec, context_k * 1024, Fieldfare()).total_bytes == mib * MIB


@pytest.mark.parametrize(("context_k", "gib"), [(64, "13.75"), (96, "20.625"), (256, "55")])
def test_gemma_without_a_ring(context_k, gib):
    spec = load_model("gemma-4-26b-a4b")
    total = cache_bytes(spec, context_k * 1024, Fieldfare(chunked=False)).total_bytes
    assert total == Fraction(gib) * GIB


@pytest.mark.parametrize(("context_k", "mib"), [(4, 141.4), (64, 1341.4), (256, 5181.4)])
def test_qwen_rows_and_state(context_k, mib):
    spec = load_model("qwen3.6-35b-a3b")
    ringed = cache_bytes(spec, context_k * 1024, Fieldfare())
    assert round(ringed.total_bytes / MIB, 1) == mib
    assert round(ringed.fixed_bytes / MIB, 1) == 61.4
    assert cache_bytes(spec, context_k * 1024, Fieldfare(chunked=False)).terms == ringed.terms


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "qwen3.6-35b-a3b"])
def test_a_further_token_costs_20480_bytes(name):
    spec = load_model(name)
    footprint = cache_bytes(spec, 65536, Fieldfare())
    assert footprint.bytes_per_token == 20480
    step = cache_bytes(spec, 65537, Fieldfare()).total_bytes - footprint.total_bytes
    assert step == 20480


def test_flash_next_sessions():
    session = SessionBytes(load_model("qwen3.8-flash-next"), Fieldfare())
    sizes = [65536] + [32768] * 3 + [16384] * 11
    rows = [size + 32 for size in sizes]
    assert sum(rows) == 344544
    row_bytes = sum(session.bytes(n) - session.fixed_bytes for n in rows)
    assert row_bytes == 344544 * (13 * 2304 + 13 * 64)
    assert round(row_bytes / GIB, 2) == 9.88
    assert session.row_bytes == 13 * 2304 + 13 * 64
    assert session.fixed_bytes == 36 * (3 * 10240 * 2 + 48 * 128 * 128 * 4)
    assert round(session.fixed_bytes / MIB, 1) == 110.1
    assert round(sum(session.bytes(n) for n in rows) / GIB, 1) == 11.5
