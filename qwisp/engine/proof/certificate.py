"""Is batched decode bit-identical to solo? Schedules run both ways and compared word by word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qwisp.engine.clients import Reply
from qwisp.engine.proof.certificate_evidence import Evidence, Missing
from qwisp.engine.proof.certificate_runs import CASES, CHUNK_TOKENS, TOKENS, Case, Runs
from qwisp.engine.proof.trail import Parting, Trail, first_parting, ulps
from qwisp.engine.spec.identity import Identity, Safeguards
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.errors import BadInput
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

KIND_NAMES = {
    FullAttention: "full attention",
    SlidingWindow: "sliding window",
    GatedDelta: "gated delta",
}


DEFINITION = "definition"
"""The case whose rows hold attention against its definition; `steps` counts compared rows there."""


class CertificateRow(NamedTuple):
    """One request under one case: identical (`step` None), or where and by what it differs.

    `ulp` is the distance of the logits at that step in units of the last place. `operation`, the
    first one whose bits differ, and `layer_kind`, the kind of its layer, are found for the first
    differing request of a case: naming it takes two more runs that keep every operation's bits.
    """

    case: str
    request: int
    steps: int
    moves: int
    step: int | None
    ulp: int
    layer_kind: str
    operation: str


class Sample(NamedTuple):
    """One greedy solo run: prompt, tokens, and raw logits `[steps, vocab]`."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    words: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Every row, the identity it holds for, and what the hostile kernels altered.

    `exercised` is what the runs reached, `missing` what the model has and they did not. `sample` is
    a solo run to compare with somebody else's.
    """

    model: str
    identity: Identity
    rows: tuple[CertificateRow, ...]
    altered: Mapping[str, int]
    exercised: Evidence
    missing: tuple[Missing, ...]
    sample: Sample

    @property
    def holds(self) -> bool:
        """No bit differed in what was exercised."""
        return all(row.step is None for row in self.rows)

    @property
    def verdict(self) -> str:
        """`identical`, that word as far as it was exercised, or `differs`."""
        if not self.holds:
            return "differs"
        return "identical as far as exercised" if self.missing else "identical"


def certify(
    model: LoadedModel,
    *,
    width: int = 8,
    hostile: bool = False,
    safeguards: Safeguards | None = None,
    max_new: int = 48,
    seed: int = 0,
    tokens: int = TOKENS,
    cases: Sequence[Case] = CASES,
) -> Certificate:
    """Return the certificate of a model at a decode width.

    Every case runs up to `width` requests at once and each request alone; the longest of them has
    `tokens` tokens with its reply. Two requests' attention is held against its definition, where
    blocked attention is on. Raises `BadInput` for a width below 8, a reply shorter than two tokens
    or a longest stream that leaves no room for windows before it.
    """
    if max_new < 2:
        raise BadInput(f"replies of {max_new} tokens", "compare at least 2")
    if tokens < (least := max_new + 2 * CHUNK_TOKENS):
        raise BadInput(
            f"longest stream of {tokens:,} tokens with replies of {max_new:,}",
            f"use {least:,} or more: two prefill windows before the reply",
        )
    identity = Identity(
        width=width,
        chunk_tokens=CHUNK_TOKENS,
        dtype=model.dtype,  # type: ignore[arg-type]
        safeguards=safeguards or Safeguards(),
    )
    runs = Runs(model, identity, hostile=hostile, max_new=max_new, seed=seed, tokens=tokens)
    rows = [row for case in cases for row in _rows(runs, case)]
    reply = runs.alone(0, Case(name="sample"))
    sample = Sample(runs.prompts[0], tuple(reply.tokens), np.stack(reply.logits))
    if runs.identity.safeguards.blocked_attention:
        rows += [_definition_row(runs, i) for i in (0, 2)]  # the longest, and one of few blocks
    return Certificate(
        model=model.name,
        identity=runs.identity,
        rows=tuple(rows),
        altered=runs.altered,
        exercised=runs.evidence,
        missing=runs.evidence.missing(model.decoder.spec, CHUNK_TOKENS, max_new),
        sample=sample,
    )


def _rows(runs: Runs, case: Case) -> Iterator[CertificateRow]:
    replies, moves = runs.together(case)
    is_named = False
    for i in runs.company(case):
        solo = runs.alone(i, case)
        step, ulp = first_difference(solo, replies[i])
        parting = None
        if step is not None and not is_named:
            parting = _bisect(runs, case, i)
            is_named = True
        operation = f"{parting.operation} at position {parting.position}" if parting else ""
        kind = _layer_kind(runs.model, parting.operation) if parting else ""
        yield CertificateRow(
            case.name, i, len(solo.logits), moves.get(i, 0), step, ulp, kind, operation
        )


def _definition_row(runs: Runs, request_id: int) -> CertificateRow:
    tap, begin = runs.define(request_id), len(runs.prompts[request_id]) - 1
    if tap.first is None:
        return CertificateRow(DEFINITION, request_id, tap.rows, 0, None, 0, "", "")
    position, ulp, operation = tap.first
    named = f"{operation} at position {position}"
    kind = _layer_kind(runs.model, operation)
    return CertificateRow(
        DEFINITION, request_id, tap.rows, 0, max(0, position - begin), ulp, kind, named
    )


def _bisect(runs: Runs, case: Case, request_id: int) -> Parting | None:
    """Run both ways once more, keeping every operation's bits, and return where they part."""
    together, alone = Trail(), Trail()
    runs.together(case, together)
    runs.alone(request_id, case, alone)
    return first_parting(alone, together, request_id)


def _layer_kind(model: LoadedModel, operation: str) -> str:
    _, _, rest = operation.partition("layers.")
    if not rest:
        return "output"
    return KIND_NAMES[type(model.decoder.spec.blocks[int(rest.split(".")[0])].layer)]


def first_difference(solo: Reply, got: Reply) -> tuple[int | None, int]:
    """Return (first step whose raw logits differ, ulp there); a missing step differs."""
    for step, (a, b) in enumerate(zip(solo.logits, got.logits, strict=False)):
        if not np.array_equal(a, b):
            return step, ulps(a, b)
    if len(solo.logits) != len(got.logits):
        return min(len(solo.logits), len(got.logits)), 0
    return None, 0
