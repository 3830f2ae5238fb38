"""A request as recorded, and a trace of them. What readers return and replays consume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PREFIX_STEP_TOKENS = 512
"""Tokens an entry of `Request.prefix` stands for (Mooncake's block, and our own files')."""


class Request(NamedTuple):
    """One recorded request.

    `arrival_ns` counts from the first request of the trace. `output_tokens` is what the reply
    really took: a scheduler must never see it, only an executor may. `max_new` is None where the
    client named no maximum. `prefix` holds one chained hash per started block of the prompt: equal
    entry i means equal tokens up to the end of block i.
    """

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_new: int | None = None
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival (ties as in the file), and what was left out and why.

    `labels` are the file's own ids where these are no numbers, else empty. `num_failed` counts
    records of requests that failed (no reply), `num_skipped` lines that a lenient read left out;
    `notes` says the first few reasons.
    """

    name: str
    requests: tuple[Request, ...]
    source: str
    labels: tuple[str, ...] = ()
    prefix_step_tokens: int = PREFIX_STEP_TOKENS
    num_failed: int = 0
    num_skipped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def span_ns(self) -> int:
        """Time from the first arrival to the last, in nanoseconds."""
        return self.requests[-1].arrival_ns - self.requests[0].arrival_ns if self.requests else 0

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens of the trace."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """All reply tokens of the trace."""
        return sum(request.output_tokens for request in self.requests)
