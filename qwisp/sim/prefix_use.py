"""What the prefix store did in a run: captures, restores, who waited, and what it held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qwisp.sim.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """A store of `limit_bytes`, which come beside the memory of the sessions.

    `cached` is the share of prompt tokens that was restored instead of computed; `waits` counts
    requests that waited for a capture under way; bytes and entries are those at the end.
    """

    limit_bytes: int
    shared_bytes: int
    conversation_bytes: int
    entries: int
    captures: int
    restores: int
    waits: int
    cached: float


def prefix_use(run: Run) -> PrefixUse | None:
    """Return what the store of a run did, None for a run without one."""
    if not run.scheduler.prefixes.is_on:
        return None
    store = run.scheduler.prefixes.store
    return PrefixUse(
        limit_bytes=run.settings.prefix_bytes,
        shared_bytes=store.used["shared"],
        conversation_bytes=store.used["conversation"],
        entries=len(store),
        captures=sum(1 for _ in run.scheduler.told("capture")),
        restores=sum(1 for _ in run.scheduler.told("restore")),
        waits=int((run.requests["waited_for"] == "prefix in flight").sum()),
        cached=run.summary.cached,
    )
