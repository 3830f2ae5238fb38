"""Side budgets: what serving keeps beside its sessions, in the same bytes as everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwisp.memory.dialect import Dialect
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.projection import Term
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.model import ModelSpec
from qwisp.units import format_bytes, format_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBudgets:
    """What is kept: prompt-cache blobs, checkpoints of a slot, copies of the state for drafts.

    A blob holds the rows and the fixed state of `prompt_cache_tokens`. A checkpoint holds the
    fixed state of one sequence (a recurrent state cannot be cut back, so it must be kept). Drafts
    of depth `draft_copies` keep that many states a lane, and the draft head its own cache.
    """

    prompt_cache_blobs: int = 0
    prompt_cache_tokens: int = 0
    checkpoints_per_slot: int = 0
    draft_copies: int = 0


def blob_bytes(model: ModelSpec, tokens: int, dialect: Dialect) -> int:
    """Return the bytes of a stored prompt: exactly its rows, its windows', and its fixed state."""
    rows = Dialect(k_type=dialect.k_type, v_type=dialect.v_type)
    stored = sum(rows.terms(model.attention_caches, tokens, model))
    return stored + SessionBytes(model, dialect).fixed_bytes // dialect.sequences


def side_terms(
    side: SideBudgets, model: ModelSpec, dialect: Dialect, lanes: int, context_tokens: int
) -> Iterator[Term]:
    """Yield a term for every side budget that is asked for; all follow from geometry."""
    fixed = SessionBytes(model, dialect).fixed_bytes // dialect.sequences
    if side.prompt_cache_blobs:
        blob = blob_bytes(model, side.prompt_cache_tokens, dialect)
        yield Term(
            name="prompt cache",
            num_bytes=side.prompt_cache_blobs * blob,
            provenance="exact",
            note=f"{side.prompt_cache_blobs} blobs of {format_tokens(side.prompt_cache_tokens)}"
            f" tokens, {format_bytes(blob)} each",
        )
    if side.checkpoints_per_slot:
        yield Term(
            name="checkpoints",
            num_bytes=side.checkpoints_per_slot * lanes * fixed,
            provenance="exact",
            note=f"{side.checkpoints_per_slot} a slot x {lanes} slots x {format_bytes(fixed)}",
        )
    if side.draft_copies:
        with_head = cache_bytes(model, context_tokens, dialect, draft=True).total_bytes
        head = with_head - cache_bytes(model, context_tokens, dialect).total_bytes
        lanes_here = 1 if dialect.sequences == lanes else lanes
        yield Term(
            name="draft copies",
            num_bytes=side.draft_copies * lanes * fixed + head * lanes_here,
            provenance="exact",
            note=f"{side.draft_copies} states a lane x {lanes} lanes x {format_bytes(fixed)},"
            f" and the draft head's cache",
        )
