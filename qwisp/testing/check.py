"""Does an executor keep the contract? Drive it through a run that holds every operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, SupportsIndex

from qwisp.errors import CheckFailed, QwispError
from qwisp.policies import scheduler_for
from qwisp.scheduling.contract import Executor
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Stepwise
from qwisp.testing.contract_watch import Broken, ContractWatch, Finding
from qwisp.testing.exercised import BLOCK_TOKENS, Exercised, Tally, lacks
from qwisp.testing.scenario import RowBytes
from qwisp.testing.script import ScriptedRequest, company, default_requests

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

MakeExecutor = Callable[[Sequence[ScriptedRequest]], Executor]
Replies = Callable[[Executor], Mapping[int, Sequence[Hashable]]]
Reference = Callable[[ScriptedRequest], Sequence[Hashable]]


class Report(NamedTuple):
    """What was found, what the runs held, and what they did not, so that nobody checked it.

    `not_seen` names operations, `not_exercised` says what else is missing and what to give.
    `num_rounds` and `num_calls` are those of the first run. `num_compared` requests gave the same
    alone and in all company; of these, `compared` was looked at: their `tokens` alone, or
    `evidence` beside them.
    """

    findings: tuple[Finding, ...]
    not_seen: tuple[str, ...]
    num_rounds: int
    num_calls: int
    exercised: Exercised
    not_exercised: tuple[str, ...]
    compared: Literal["nothing", "tokens", "evidence"]
    num_compared: int

    @property
    def word(self) -> str:
        """How much may be said. Equal tokens can come from unequal logits; evidence cannot."""
        if self.findings:
            return "broken"
        words = {"nothing": "not compared", "tokens": "same tokens", "evidence": "identical"}
        return words[self.compared]

    def __str__(self) -> str:
        lines = [f"{self.word}: {self.num_compared} requests alone, step by step and in company"]
        lines += [str(finding) for finding in self.findings]
        lines.append(f"exercised: {self.exercised}")
        lines += [f"not exercised: operation {name}" for name in self.not_seen]
        lines += [f"not exercised: {what}" for what in self.not_exercised]
        return "\n".join(lines)

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
    reference: Reference | None = None,
    block_tokens: int = BLOCK_TOKENS,
    window_tokens: int | None = None,
) -> Report:
    """Return what an executor does against the contract while it serves scripted requests.

    `make(requests)` returns a fresh executor whose clients ask exactly these, in rounds `arrives`
    and `cancelled`. Without `requests` it serves a few that move, pause, resume, are refused,
    cancelled and come late; then, as far as the layout holds them, streams that cross 1, 2 and 5
    blocks of `block_tokens` and wrap a ring of `window_tokens`, beside 1, 5, 6 and 7 others, long
    and short, in other places. Watched are: rounds within the repeats granted, tokens counted,
    stops of live requests only, facts once each and in order, runs ended by what must end them, no
    failure, and a clean close.

    `replies(executor)` returns by request id what each token was: the token, or better a pair of
    it and a digest of its raw logits. Then a reply must be as long as was said, and the same
    alone, step by step and in company. `reference(request)` returns the reply by definition,
    computed some other way: only that shows what is wrong in all company alike.

    >>> from qwisp.testing import ToyEngine, sessions
    >>> report = check_executor(
    ...     lambda requests: ToyEngine(requests, 104),
    ...     layout=sessions(16, 24, 64),
    ...     settings=Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8),
    ...     replies=lambda engine: engine.replies)
    >>> report.findings, report.not_seen, report.word
    ((), (), 'same tokens')
    >>> report.not_exercised[1]
    '5, 6, 7 neighbours: give 8 sessions that hold the longest stream'
    """
    settings = settings or Settings(grow_tokens=4)
    asked = list(requests) if requests is not None else default_requests(layout, settings)
    others = company(layout, settings, block_tokens, window_tokens)
    tally = Tally(block_tokens, window_tokens)
    check = _Check(make, layout, settings, size or RowBytes(), replies, reference, tally)
    crowd = check.run(asked)
    check.compare(asked, crowd, check.run(asked, stepwise=True))
    for run in others.runs if requests is None else ():
        if check.findings:
            break  # what comes after a breach says little
        check.compare(run, check.run(run))
    found = check.tally.exercised
    missing = lacks(
        found,
        block_tokens=block_tokens,
        window_tokens=window_tokens,
        largest_tokens=layout.context_tokens,
        wanted_tokens=others.wanted_tokens,
    )
    if check.compared == "tokens":
        missing.append("logits: let `replies` give (token, digest of its raw logits) a token")
    if reference is None:
        missing.append("the definition: give `reference`, or a fault in all company alike passes")
    return Report(
        tuple(check.findings),
        tuple(name for name in EXERCISED if not check.operations[name]),
        crowd.watch.num_rounds,
        crowd.watch.num_calls,
        found,
        tuple(missing),
        check.compared,
        len(check.same),
    )


@dataclass
class _Check:
    """Runs, and what comparing them found."""

    make: MakeExecutor
    layout: Layout
    settings: Settings
    size: SessionSize
    replies: Replies | None
    reference: Reference | None
    tally: Tally
    findings: list[Finding] = field(default_factory=list)
    same: set[int] = field(default_factory=set)
    operations: Counter[str] = field(default_factory=Counter)
    compared: Literal["nothing", "tokens", "evidence"] = "nothing"
    solo: dict[int, Sequence[Hashable]] = field(default_factory=dict)

    def run(self, requests: Iterable[ScriptedRequest], *, stepwise: bool = False) -> _Run:
        """Drive a fresh executor through `requests` and note the operations it met."""
        run = self._drive(requests, stepwise=stepwise)
        self.operations += run.watch.operations
        return run

    def _drive(self, requests: Iterable[ScriptedRequest], *, stepwise: bool = False) -> _Run:
        requests = list(requests)
        executor = self.make(requests)
        watch = ContractWatch(executor, requests, self.settings.step_tokens, self.tally)
        scheduler = scheduler_for(self.layout, self.size, self.settings)
        drained = False
        try:
            drive(scheduler, Stepwise(watch) if stepwise else watch)
            drained = True
        except Broken:
            pass
        except QwispError as error:
            watch.findings.append(Finding(scheduler.index, "scheduler", error.what))
        watch.end(drained)
        watch.close()
        self.findings += watch.findings
        return _Run(executor, watch)

    def compare(self, requests: Iterable[ScriptedRequest], *runs: _Run) -> None:
        """Find what runs of the same requests replied otherwise than each request alone."""
        if self.replies is None or self.findings:
            return
        said, *again = [self.replies(run.executor) for run in runs]
        self.findings += _counted(runs[0], said)
        for request in requests:
            if request.id not in said:
                continue
            found = _same(request.id, said[request.id], self._alone(request), "alone")
            for stepped in again:
                found += _same(request.id, said[request.id], stepped[request.id], "step by step")
            self.same.discard(request.id)
            if said[request.id] and not found:
                self.same.add(request.id)
                is_token = isinstance(said[request.id][0], SupportsIndex)
                if self.compared != "tokens":
                    self.compared = "tokens" if is_token else "evidence"
            self.findings += found

    def _alone(self, request: ScriptedRequest) -> Sequence[Hashable]:
        """Return the reply of a request that nobody is beside, once held against its definition."""
        if request.id not in self.solo:
            alone = self._drive([request._replace(arrives=0)])
            self.solo[request.id] = reply = self.replies(alone.executor).get(request.id, ())  # type: ignore[misc]
            if self.reference is not None:
                defined = self.reference(request)
                self.findings += _same(request.id, reply, defined, "by definition")
        return self.solo[request.id]


class _Run(NamedTuple):
    """One drive of a fresh executor under watch."""

    executor: Executor
    watch: ContractWatch


def _counted(run: _Run, replies: Mapping[int, Sequence[Hashable]]) -> list[Finding]:
    return [
        Finding(0, "produced", f"request {i}: {len(reply)} tokens came, {run.watch.tokens[i]} said")
        for i, reply in replies.items()
        if len(reply) != run.watch.tokens[i]
    ]


def _same(
    request_id: int, reply: Sequence[Hashable], other: Sequence[Hashable], how: str
) -> list[Finding]:
    """Compare as far as both go: a cancel may cut one of them earlier."""
    for at, (one, two) in enumerate(zip(reply, other, strict=False)):
        if one != two:
            what = f"request {request_id}: token {at} is {one}, {how} it is {two}"
            return [Finding(0, "replies", what)]
    return []
