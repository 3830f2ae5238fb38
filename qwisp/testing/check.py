"""Does an executor keep the contract? Drive it through a run that holds every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from qwisp.errors import CheckFailed, QwispError
from qwisp.scheduling.chunking import granted_chunks
from qwisp.scheduling.contract import Executor
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Stepwise
from qwisp.testing.contract_watch import Broken, ContractWatch, Finding
from qwisp.testing.scenario import RowBytes
from qwisp.testing.script import ScriptedRequest

EXERCISED = (
    "End",
    "Resume",
    "Move",
    "Pause",
    "Admit",
    "Grant",
    "repeated Grant",
    "repeated decode",
)

IDLE = 10_000  # a round by which everything before is over

MakeExecutor = Callable[[Sequence[ScriptedRequest]], Executor]
Replies = Callable[[Executor], Mapping[int, Sequence[int]]]


class Report(NamedTuple):
    """What was found. `not_seen` names operations that the run did not hold, so nobody checked."""

    findings: tuple[Finding, ...]
    not_seen: tuple[str, ...]
    num_rounds: int
    num_calls: int

    def require(self) -> Report:
        """Return the report; raise `CheckFailed` with every finding unless there is none."""
        if self.findings:
            raise CheckFailed(
                f"the executor breaks the contract {len(self.findings)} times:\n"
                + "\n".join(map(str, self.findings[:20])),
                "read qwisp/scheduling/contract.py beside the first of them",
            )
        return self


def check_executor(
    make: MakeExecutor,
    *,
    layout: Layout,
    settings: Settings | None = None,
    size: SessionSize | None = None,
    requests: Sequence[ScriptedRequest] | None = None,
    replies: Replies | None = None,
) -> Report:
    """Return what an executor does against the contract while it serves scripted requests.

    `make(requests)` returns a fresh executor whose clients ask exactly these, in rounds `arrives`
    and `cancelled`; `requests` default to a few that move, pause, resume, are refused, cancelled
    and come late. Watched are: rounds within the repeats granted, tokens counted, stops of live
    requests only, facts once each and in order, runs ended by what must end them, no failure, and
    a clean close. With `replies(executor)`, the tokens of each request by id, also whether
    operations were honoured: a reply must be as long as was said, and the same alone, step by
    step, and in the crowd.

    >>> from qwisp.testing import ToyEngine, sessions
    >>> report = check_executor(
    ...     lambda requests: ToyEngine(requests, 104),
    ...     layout=sessions(16, 24, 64),
    ...     settings=Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8),
    ...     replies=lambda engine: engine.replies)
    >>> report.findings, report.not_seen
    ((), ())
    """
    settings = settings or Settings(grow_tokens=4)
    asked = list(requests) if requests is not None else default_requests(layout, settings)
    crowd = _Run(make, asked, layout, settings, size)
    single = _Run(make, asked, layout, settings, size, stepwise=True)
    findings = [*crowd.watch.findings, *single.watch.findings]
    if replies is not None and not findings:
        said, stepped = replies(crowd.executor), replies(single.executor)
        findings += _counted(crowd, said)
        for request in asked:
            if request.id not in said:
                continue
            alone = _Run(make, [request._replace(arrives=0)], layout, settings, size)
            solo = replies(alone.executor).get(request.id, ())
            findings += _same(request.id, said[request.id], solo, "alone")
            findings += _same(request.id, said[request.id], stepped[request.id], "step by step")
    seen = crowd.watch.operations
    return Report(
        tuple(findings),
        tuple(name for name in EXERCISED if not seen[name]),
        crowd.watch.num_rounds,
        crowd.watch.num_calls,
    )


def default_requests(layout: Layout, settings: Settings) -> list[ScriptedRequest]:
    """Return requests that meet every operation, with prompts as short as that allows."""
    sizes = sorted(set(layout.contexts or (layout.context_tokens,)))
    step, grow = settings.step_tokens, settings.grow_tokens
    small, largest = sizes[0], sizes[-1]
    crossing = max(1, small - grow - step)
    beyond = max(1, largest - crossing - step)
    long = min(2 * grow + step + 8, beyond)
    holder = 1 if len(sizes) == 1 else sizes[-2] - min(grow, long) - step + 1
    holder = min(max(1, holder), max(1, largest - long - step))
    a_round = granted_chunks(settings.budget_tokens, 0, settings.chunk_tokens)
    several = max(1, min(4 * a_round * settings.chunk_tokens + 3, largest - 6 - step))
    count = layout.contexts.count(small) + 1
    asks = [ScriptedRequest(0, holder, long, long)]
    asks += [ScriptedRequest(i, crossing, long, long, arrives=i) for i in range(1, count + 1)]
    number = count + 1
    return [
        *asks,
        ScriptedRequest(number, 1, 5, 6, arrives=2),
        ScriptedRequest(number + 1, several, 4, 6, arrives=2),
        ScriptedRequest(number + 2, crossing, long, long, arrives=4, cancelled=7),
        ScriptedRequest(number + 3, largest + 1, 4, 6, arrives=5),
        ScriptedRequest(number + 4, crossing, long, long, arrives=IDLE),
        ScriptedRequest(number + 5, several, 5, 6, arrives=IDLE + 3),
        ScriptedRequest(number + 6, 1, 9, 9, arrives=IDLE + 4, cancelled=IDLE + 7),
    ]


class _Run:
    """One drive of a fresh executor under watch."""

    def __init__(
        self,
        make: MakeExecutor,
        requests: Iterable[ScriptedRequest],
        layout: Layout,
        settings: Settings,
        size: SessionSize | None,
        *,
        stepwise: bool = False,
    ) -> None:
        requests = list(requests)
        self.executor = make(requests)
        self.watch = ContractWatch(self.executor, requests, settings.step_tokens)
        scheduler = Scheduler(RowSpace(layout, size or RowBytes()), settings)
        drained = False
        try:
            drive(scheduler, Stepwise(self.watch) if stepwise else self.watch)
            drained = True
        except Broken:
            pass
        except QwispError as error:
            self.watch.findings.append(Finding(scheduler.index, "scheduler", error.what))
        self.watch.end(drained)
        self.watch.close()


def _counted(run: _Run, replies: Mapping[int, Sequence[int]]) -> list[Finding]:
    return [
        Finding(0, "produced", f"request {i}: {len(reply)} tokens came, {run.watch.tokens[i]} said")
        for i, reply in replies.items()
        if len(reply) != run.watch.tokens[i]
    ]


def _same(request_id: int, reply: Sequence[int], other: Sequence[int], how: str) -> list[Finding]:
    """Compare as far as both go: a cancel may cut one of them earlier."""
    for at, (one, two) in enumerate(zip(reply, other, strict=False)):
        if one != two:
            what = f"request {request_id}: token {at} is {one}, {how} it is {two}"
            return [Finding(0, "replies", what)]
    return []
