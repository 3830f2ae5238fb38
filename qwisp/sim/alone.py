"""How long the longest request of a run takes when it has the machine to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qwisp.cost.offered import solo_e2e_ps
from qwisp.policies import scheduler_for
from qwisp.scheduling.drive import drive
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RequestRecord

if TYPE_CHECKING:
    from qwisp.sim.run import Run

REPLAYED = 3


def longest_alone_ps(run: Run, ran: Sequence[RequestRecord], above_ps: int) -> int:
    """Return the longest solo E2E of the requests that `ran`, 0 without any.

    Prefill and decode follow from the lengths. The copies of growing and of captures follow from
    the layout, so where there are any, and the answer would be below `above_ps`, the longest three
    and the last to end are replayed alone.
    """
    if not ran:
        return 0
    prompts = np.array([r.prompt_tokens for r in ran], dtype=object)
    outputs = np.array([max(1, r.produced) for r in ran], dtype=object)
    lengths = solo_e2e_ps(run.cost, prompts, outputs, run.settings.budget_tokens)
    longest_ps = int(lengths.max())
    copies = run.layout.grows or run.settings.prefix_bytes > 0
    if longest_ps >= above_ps or not copies:
        return longest_ps
    chosen = [ran[i] for i in np.argsort(-lengths, kind="stable")[:REPLAYED]]
    chosen.append(max(ran, key=lambda r: r.end_ps))
    return max(longest_ps, *(alone_ps(run, record) for record in chosen))


def alone_ps(run: Run, record: RequestRecord) -> int:
    """Return picoseconds from arrival to end of a request on an idle engine, nothing cached."""
    executor = CostExecutor([(0, record.ask, max(1, record.produced))], run.cost, run.size)
    drive(scheduler_for(run.layout, run.size, run.settings), executor)
    return executor.records[record.id].end_ps
