"""What a request waits for, in words and numbers, and the smallest change that would help it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Binding
from qwisp.scheduling.stream import PAUSED, PREFILL, WAITING

if TYPE_CHECKING:
    from qwisp.scheduling.scheduler import Scheduler


def explain(scheduler: Scheduler, request_id: int) -> Binding:
    """Return the binding resource of a live request. Raises `BadInput` for an id not live."""
    stream = scheduler.live.get(request_id)
    if stream is None:
        raise BadInput(
            f"request {request_id} is not live", "ask about a waiting or running request"
        )
    space = scheduler.space
    if stream.state == PAUSED:
        least = stream.length(0) + scheduler.settings.step_tokens  # it outgrew its own
        return Binding(
            request_id,
            "no free session large enough",
            f"paused at {stream.length(0):,} tokens in a session of "
            f"{stream.place.context_tokens:,}; a free one of {least:,} tokens or more resumes it",
        )
    if stream.state == PREFILL:
        left = stream.prefill_end - stream.position
        return Binding(request_id, "token budget", f"{left:,} prompt tokens are left to prefill")
    if stream.state != WAITING:
        return Binding(request_id, "", "it decodes and waits for nothing")
    line = list(scheduler.line)
    ahead = line.index(stream)
    if ahead and not (scheduler.line.passes and space.find(stream.want_rows) is None):
        head = line[0]
        return Binding(
            request_id,
            "order",
            f"{ahead:,} requests are ahead; the first needs {head.want_rows:,} rows and waits for: "
            f"{scheduler.resource(head)}",
        )
    free = max((len(run) for run in space.free), default=0)
    resource = scheduler.resource(stream)
    change = f"a free session of {stream.want_rows - space.margin_rows:,} tokens would admit it"
    if resource == "prefix in flight":
        change = "it starts from that prefix as soon as it is captured"
    elif resource == "lane count":
        change = f"one of the {space.lanes} lanes must end"
    elif resource == "byte budget":
        change = (
            f"{space.layout.budget_bytes - space.committed_bytes:,} bytes of the budget are left"
        )
    elif resource == "contiguous rows":
        change = f"{sum(map(len, space.free)):,} rows are free, but in pieces"
    return Binding(
        request_id,
        resource,
        f"needs {stream.want_rows:,} rows, the largest free run has {free:,}; {change}",
    )
