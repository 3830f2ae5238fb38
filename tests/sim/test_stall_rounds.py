"""The stall law, found again in the rounds of a replay: same k, same stalls, to the picosecond."""

from __future__ import annotations

import pytest

from qwisp.cost import load_cost
from qwisp.scheduling.contract import Ask
from qwisp.scheduling.drive import drive
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RoundTable
from qwisp.sim.replay import settings_for
from qwisp.sim.stall_law import stall_law
from qwisp.testing import RowBytes, sessions

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")


def prefill_rounds(budget_tokens: int, prompt_tokens: int, *, stepwise: bool) -> list[dict]:
    """Rounds of a replay in which a second prompt is prefilled beside a long stream."""
    layout = sessions(65536, 65536)
    scheduler = Scheduler(
        RowSpace(layout, RowBytes()), settings_for(COST, budget_tokens=budget_tokens)
    )
    asks = [(0, Ask(1, 10, 2000), 2000), (10**12, Ask(2, prompt_tokens, 5), 5)]
    executor = CostExecutor(asks, COST, RowBytes())
    drive(scheduler, Stepwise(executor) if stepwise else executor)
    rows = [dict(zip(RoundTable.NAMES, row, strict=True)) for row in executor.rounds.rows]
    return [row for row in rows if row["grants_ps"] and row["index"] > 0]


@pytest.mark.parametrize("budget", [0, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("prompt", [1, 1024, 1025, 10_553, 24_000])
def test_a_running_stream_stalls_as_the_law_says(budget: int, prompt: int) -> None:
    law = stall_law(COST, prompt, budget_tokens=budget, stream_gaps=2000)
    single = prefill_rounds(budget, prompt, stepwise=True)
    assert len(single) == law.k
    rows_ps = [COST.row_ps * row["used_rows"] for row in single]
    stalls = [row["end_ps"] - row["begin_ps"] for row in single]
    assert [s - r for s, r in zip(stalls, rows_ps, strict=True)] == list(law.stalls_ps)
    closed = prefill_rounds(budget, prompt, stepwise=False)
    assert sum(row["rounds"] for row in closed) == law.k
    assert sum(row["end_ps"] - row["begin_ps"] for row in closed) == sum(stalls)
