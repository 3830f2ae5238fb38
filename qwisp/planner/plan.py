"""Replay every candidate at a rate the best one sustains, and say which one to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from qwisp.cost.offered import Offered
from qwisp.errors import BadInput
from qwisp.planner.candidates import Candidate, Proposal, proposals
from qwisp.planner.question import Question
from qwisp.sim.summary import Summary
from qwisp.sim.sustain import Sustained, sustain
from qwisp.trace.request import Trace

EASIER = Fraction(4, 5)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The comparison. `best` is the recommended candidate, None when none fits.

    `verdict` is about the arrivals asked for, as recorded unless a rate was given: overloaded above
    the machine's capacity, backlogged when no candidate keeps up with them, else stable; infeasible
    when none fits, or none finishes a single request. `rate` is where the candidates are compared.
    `offered` leaves out requests that no candidate that fits can run.

    `differs` is False when no candidate moves, waits, pauses, refuses or cuts anything: then the
    traffic does not tell them apart and none is ranked.
    """

    question: Question
    offered: Offered
    rate: Fraction
    candidates: tuple[Candidate, ...]
    best: Candidate | None
    differs: bool
    verdict: str
    why: str


def make_plan(
    question: Question,
    layouts: tuple[Proposal, ...] = (),
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Return the plan for a question, among `layouts` if any are named.

    Unless the question names a rate, every feasible candidate's highest sustained rate is found,
    and all are compared at the best of these and at 0.8 of it. Raises `NotCalibrated` when times
    are unknown and `BadInput` for an empty trace.
    """
    trace, memory_bytes, rate = question.trace, question.memory_bytes, question.rate
    if not trace.requests:
        raise BadInput(f"trace {trace.name!r} holds no request", "give a trace with requests")
    found = _candidates(question, layouts)
    fitting = [c for c in found if c.num_bytes <= memory_bytes]
    served = [question.served(candidate.layout) for candidate in fitting]
    offered = question.offered(_union(trace, served))
    limits: dict[int, Sustained] = {}
    if rate is None:
        for candidate, part in zip(fitting, served, strict=True):
            if not part.requests:
                continue  # what runs nothing keeps up with anything
            progress(f"finding the rate that {candidate.proposal} sustains")
            run_at = question.replays(candidate.layout)
            limits[id(candidate)] = sustain(trace, offered.ratio, run_at)
        rate = max((s.rate for s in limits.values()), default=Fraction(0)) or Fraction(1)
    done = []
    for candidate in found:
        if candidate not in fitting:
            done.append(candidate)
            continue
        progress(f"replaying {candidate.proposal}")
        run_at = question.replays(candidate.layout)
        done.append(
            replace(
                candidate,
                run=run_at(trace, rate=rate),
                easier=run_at(trace, rate=rate * EASIER).summary,
                sustained=limits.get(id(candidate)),
            )
        )
    best_rate = max((s.rate for s in limits.values()), default=None)
    return _conclude(question, offered, rate, best_rate, tuple(done))


def _candidates(question: Question, layouts: tuple[Proposal, ...]) -> list[Candidate]:
    """Return what is compared, not yet replayed: the layouts named, or our own proposals."""
    context = question.model.context_max_tokens
    found = []
    for proposal in layouts or proposals(
        question.trace, question.size, question.memory_bytes, context
    ):
        try:
            layout = question.layout(proposal.text, own_context_tokens=proposal.own_context_tokens)
        except BadInput:
            if layouts:
                raise  # it was asked for by name
            continue  # one of ours, and this model's context is too short for it
        num_bytes = layout.num_bytes(question.size)
        found.append(Candidate(proposal=proposal, layout=layout, num_bytes=num_bytes))
    return found


def _union(trace: Trace, parts: list[Trace]) -> Trace:
    """Return the requests of `trace` that are in one of `parts`; all of them if these are empty."""
    if any(len(part.requests) == len(trace.requests) for part in parts):
        return trace
    ids = {request.id for part in parts for request in part.requests}
    kept = tuple(request for request in trace.requests if request.id in ids)
    return replace(trace, requests=kept) if kept else trace


def _conclude(
    question: Question,
    offered: Offered,
    rate: Fraction,
    best_rate: Fraction | None,
    candidates: tuple[Candidate, ...],
) -> Plan:
    ran = [c for c in candidates if c.run is not None]
    best = min((c for c in ran if c.run.summary.finished), key=_merit, default=None)
    differs = any(_happened(c.run.summary) for c in ran)
    verdict = "infeasible" if best is None else best.run.summary.verdict
    if best is not None and offered.ratio is not None and offered.ratio > 1:
        verdict = "overloaded"
    elif best is not None and _falls_behind(offered, best_rate):
        verdict = "backlogged"  # at the rate compared it is stable, which the search made sure of
    return Plan(
        question=question,
        offered=offered,
        rate=rate,
        candidates=candidates,
        best=best if differs else None,
        differs=differs,
        verdict=verdict,
        why=_why(offered, rate, best_rate, best, differs, candidates, question.memory_bytes),
    )


def _falls_behind(offered: Offered, best_rate: Fraction | None) -> bool:
    """Whether the search found that no candidate keeps up; a burst has no rate to keep up with."""
    return offered.ratio is not None and best_rate is not None and best_rate < 1


def _merit(candidate: Candidate) -> tuple:
    """Lost requests first, then the verdict, then p95 time to first token, then bytes."""
    s = candidate.run.summary
    return (
        s.lost,
        ("stable", "backlogged", "overloaded").index(s.verdict),
        s.ttft_s.p95 or 0.0,
        candidate.num_bytes,
    )


def _before_the_burst(candidates: tuple[Candidate, ...]) -> list[str]:
    """Return the highest rate that some candidate keeps before the last burst, in words."""
    found = [c for c in candidates if c.sustained is not None and c.sustained.part_rate]
    if not found:
        return []
    best = max(found, key=lambda c: (c.sustained.part_rate, c.sustained.part_requests)).sustained
    return [
        f"before the last burst, the first {best.part_requests:,} requests are stable at "
        f"{float(best.part_rate):g}x"
    ]


def _happened(summary: Summary) -> bool:
    waits = sum(summary.waits_by_binding.values())
    return bool(waits or summary.moves or summary.pauses or summary.refused or summary.truncated)


def _why(
    offered: Offered,
    rate: Fraction,
    best_rate: Fraction | None,
    best: Candidate | None,
    differs: bool,
    candidates: tuple[Candidate, ...],
    memory_bytes: int,
) -> str:
    ran = [c.run.summary for c in candidates if c.run is not None]
    if best is None and ran:
        refused = max(s.refused for s in ran)
        names = ", ".join(sorted({name for s in ran for name in s.refusals_by_binding}))
        return (
            f"no candidate finishes any of {ran[0].requests:,} requests; up to {refused:,} are "
            f"refused for {names}"
        )
    if best is None:
        least = min((c.num_bytes for c in candidates), default=0)
        return f"no candidate fits {memory_bytes:,} bytes; the smallest takes {least:,}"
    parts = []
    if offered.ratio is not None and offered.ratio > 1:
        parts.append(
            f"as recorded the trace needs {offered.num_machines} such machines "
            f"({offered.ratio:.2f} x capacity)"
        )
    elif _falls_behind(offered, best_rate):
        parts.append("no layout keeps up with the recorded arrivals")
        if best_rate:
            parts[-1] += f", the best one sustains {float(best_rate):g}x of them"
        else:
            parts[-1] += " or with any slower ones that were tried"
            parts += _before_the_burst(candidates)
    parts.append(f"compared at {float(rate):g}x")
    if not differs:
        parts.append("no candidate moves, waits or refuses anything, so none is ranked")
        return "; ".join(parts)
    s = best.run.summary
    parts.append(
        f"{best.proposal} loses {s.lost:,} of {s.requests:,} and answers 95 % of first tokens "
        f"within {s.ttft_s.p95 or 0:,.1f} s"
    )
    others = [c for c in candidates if c.run is not None and c is not best]
    if others:
        second = min(others, key=_merit)
        t = second.run.summary
        parts.append(
            f"next is {second.proposal} with {t.lost:,} lost and {t.ttft_s.p95 or 0:,.1f} s"
        )
    return "; ".join(parts)
