"""Does an executor keep the contract? Drive it through a run that holds every operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, SupportsIndex

from qwisp.errors import CheckFailed, QwispError
from qwisp.policies import scheduler_for
from qwisp.scheduling.chunking import granted_chunks
from qwisp.scheduling.contract import Executor
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Stepwise
from qwisp.testing.company import company
from qwisp.testing.contract_watch import Broken, ContractWatch, Finding
from qwisp.testing.exercised import BLOCK_TOKENS, Exercised, Tally, lacks
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
    check = _Check(
        make, layout, settings, size, replies, reference, Tally(block_tokens, window_tokens)
    )
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


class _Check:
    """Runs, and what comparing them found."""

    def __init__(
        self,
        make: MakeExecutor,
        layout: Layout,
        settings: Settings,
        size: SessionSize | None,
        replies: Replies | None,
        reference: Reference | None,
        tally: Tally,
    ) -> None:
        self.findings: list[Finding] = []
        self.same: set[int] = set()
        self.operations: Counter[str] = Counter()
        self.compared: Literal["nothing", "tokens", "evidence"] = "nothing"
        self.tally = tally
        self._make = make
        self._layout = layout
        self._settings = settings
        self._size = size
        self._replies = replies
        self._reference = reference
        self._solo: dict[int, Sequence[Hashable]] = {}

    def run(self, requests: Iterable[ScriptedRequest], *, stepwise: bool = False) -> _Run:
        """Drive a fresh executor through `requests` and note the operations it met."""
        run = self._drive(requests, stepwise=stepwise)
        self.operations += run.watch.operations
        return run

    def _drive(self, requests: Iterable[ScriptedRequest], *, stepwise: bool = False) -> _Run:
        requests = list(requests)
        executor = self._make(requests)
        watch = ContractWatch(executor, requests, self._settings.step_tokens, self.tally)
        scheduler = scheduler_for(self._layout, self._size or RowBytes(), self._settings)
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
        if self._replies is None or self.findings:
            return
        said, *again = [self._replies(run.executor) for run in runs]
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
        if request.id not in self._solo:
            alone = self._drive([request._replace(arrives=0)])
            self._solo[request.id] = reply = self._replies(alone.executor).get(request.id, ())  # type: ignore[misc]
            if self._reference is not None:
                defined = self._reference(request)
                self.findings += _same(request.id, reply, defined, "by definition")
        return self._solo[request.id]


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
