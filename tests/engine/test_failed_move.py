"""A move fails while a newcomer is already given the session that it was to leave."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Admit, Move, Round
from qwisp.scheduling.wrappers import Faulty

from .runs import prompts, run, sized

pytestmark = pytest.mark.mlx


def test_the_end_of_a_stream_that_could_not_move_leaves_the_newcomers_rows_alone() -> None:
    requests = prompts([40, 20], seed=5)
    layout, max_new = sized([200, 64]), {0: 100, 1: 10}

    def fails(round: Round) -> list[int]:
        return [n for n, op in enumerate(round.ops) if isinstance(op, Move)]

    ran = run(
        "hybrid",
        requests,
        max_new,
        layout=layout,
        arrivals={1: 24},
        wrap=lambda inner: Faulty(inner, fails),
        poisons=True,
    )
    shared = [round for round in ran.rounds if any(isinstance(op, Move) for op in round.ops)]
    (move,) = [op for op in shared[0].ops if isinstance(op, Move)]
    (admit,) = [op for op in shared[0].ops if isinstance(op, Admit)]
    assert admit.place.start_row == move.source.start_row
    assert ran.scheduler.counts["failed"] == 1
    alone = run("hybrid", {1: requests[1]}, {1: 10}, layout=layout, poisons=True)
    assert ran.replies[1].tokens == alone.replies[1].tokens
