"""A cut made by hand against the planner's, on the same requests, memory and arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from qwisp.errors import BadInput
from qwisp.planner.candidates import Proposal
from qwisp.planner.plan import make_plan
from qwisp.sim.run import Run
from qwisp.units import format_bytes
from qwisp.widgets.lab_state import LabState
from qwisp.widgets.question import question_of


@dataclass(frozen=True, kw_only=True)
class Duel:
    """Who cut better: fewer lost requests first, then the sooner first token (p95).

    `table`: `by` (you or planner), `layout`, `memory_bytes`, `lost`, `moves`, `pauses`,
    `ttft_p95_s`, best first. `planned` is the planner's layout as one would type it.
    """

    table: pl.DataFrame
    planned: Proposal
    planned_ttft_p95_s: float
    your_ttft_p95_s: float
    finding: str


def duel(state: LabState) -> Duel:
    """Return policy A of a lab against the best candidate of `qwisp plan` at the same arrivals.

    Raises `QwispError` when either cannot be replayed or no candidate of the planner fits.
    """
    yours = state.run_a
    question = question_of(state.scenario.a)
    # The planner's cuts bring their own context for the engine's session.
    plan = make_plan(replace(question, rate=yours.rate, own_context_tokens=None))
    rows = [_row("you", yours.layout.text, yours)]
    ran = [candidate for candidate in plan.candidates if candidate.run is not None]
    rows += [_row("planner", str(candidate.proposal), candidate.run) for candidate in ran]
    if not ran:
        raise BadInput(
            f"no candidate of the planner fits {format_bytes(question.memory_bytes)}",
            "give more memory",
        )
    table = pl.DataFrame(rows).sort("lost", "ttft_p95_s", maintain_order=True)
    planned = table.filter(pl.col("by") == "planner").row(0, named=True)
    mine = rows[0]
    return Duel(
        table=table,
        planned=next(c.proposal for c in ran if str(c.proposal) == planned["layout"]),
        planned_ttft_p95_s=planned["ttft_p95_s"],
        your_ttft_p95_s=mine["ttft_p95_s"],
        finding=_finding(mine, planned),
    )


def _row(by: str, layout: str, run: Run) -> dict[str, object]:
    s = run.summary
    return {
        "by": by,
        "layout": layout,
        "memory_bytes": run.layout.num_bytes(run.size),
        "lost": s.lost,
        "moves": s.moves,
        "pauses": s.pauses,
        "ttft_p95_s": s.ttft_s.p95,
    }


def _finding(mine: dict, planned: dict) -> str:
    def says(row: dict) -> str:
        first = "answers nobody" if row["ttft_p95_s"] is None else f"{row['ttft_p95_s']:,.1f} s"
        return f"{row['layout']} loses {row['lost']:,} and has its first token (p95) within {first}"

    def merit(row: dict) -> tuple:
        return row["lost"], row["ttft_p95_s"] or 0.0

    word = "the planner wins"
    if merit(mine) <= merit(planned):
        word = "you win" if merit(mine) < merit(planned) else "a draw"
    return f"{word}: your {says(mine)}; the planner's {says(planned)}"
