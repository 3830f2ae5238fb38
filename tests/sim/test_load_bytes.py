"""Bytes over time: what streams hold and use never passes what the layout allocated."""

from __future__ import annotations

import pytest

from qwisp.cost import load_cost
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import parse_layout
from qwisp.sim.replay import replay, settings_for
from qwisp.spec.catalog import load_model
from qwisp.trace.request import Request, Trace
from qwisp.units import GIB, MIB

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")


@pytest.mark.parametrize(
    ("layout", "allocated", "held"),
    [
        # A ring of 1,280 rows x 25 layers x 8 KiB is 250 MiB; a row of the rest is 20 KiB.
        ("16384", 2 * 250 * MIB + 2 * 16416 * 20480, 250 * MIB + 16416 * 20480),
        # Eight rings; the request holds 1,000 + 1 + 500 rows.
        ("per_request:4GiB", 2000 * MIB + 107_315 * 20480, 250 * MIB + 1501 * 20480),
    ],
)
def test_a_window_counts_once_and_rows_by_their_own_bytes(layout, allocated, held):
    model = load_model("gemma-4-26b-a4b")
    size = SessionBytes(model, chunk_tokens=256)
    sessions = parse_layout(
        layout,
        size=size,
        memory_bytes=12 * GIB,
        model_context_tokens=262144,
        own_context_tokens=16384 if layout == "16384" else None,
    )
    requests = (Request(0, 0, 1000, 500, max_new=500),)
    trace = Trace(name="one", requests=requests, source="by hand")
    load = replay(trace, sessions, size, COST, settings_for(COST)).load
    assert load["allocated_bytes"].unique().to_list() == [allocated]
    assert load["held_bytes"].max() == held
    assert load["used_bytes"].max() <= held
    assert load["used_bytes"].filter(load["decode"] > 0).min() >= 250 * MIB + 999 * 20480
