"""Replay the facts of a real run through a fresh scheduler, and say whether it decides the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qwisp.cost import CostModel
from qwisp.errors import BadInput, BadTrace, CheckFailed
from qwisp.facts.executor import FactsExecutor
from qwisp.facts.file import FactRecord, FactsHeader, read_facts
from qwisp.facts.record import log_digest
from qwisp.scheduling.contract import LogEntry
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import MAX_SESSIONS, Layout, RowBytes, SessionSize, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.sim.cost_executor import CostExecutor

# Further keys of a header that the replay reads; a test compares them with what it asks for.
READ_KEYS = frozenset(
    [
        "step_tokens",
        "grow",
        "gen_cap",
        "max_passed",
        "chunk_rule",
        "cut",
        "prefix_bytes",
        "prefix_step",
        "boundary",
        "min_shared",
        "log_sha256",
        "row_bytes",
        "fixed_bytes",
        "context",
        "model_context",
        "sessions",
        "memory_bytes",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsReplay:
    """What a fresh scheduler decided on recorded facts.

    `recorded_sha256` is the digest of the run's own log where its header has one. `clock` holds
    estimated times of the same rounds where a cost model was given.
    """

    header: FactsHeader
    records: tuple[FactRecord, ...]
    scheduler: Scheduler
    log: tuple[LogEntry, ...]
    log_sha256: str
    recorded_sha256: str | None
    clock: CostExecutor | None

    @property
    def equal(self) -> bool | None:
        """Whether the decisions equal the recorded ones; None when the file does not say."""
        return None if self.recorded_sha256 is None else self.recorded_sha256 == self.log_sha256

    def require_equal(self, log: Sequence[LogEntry] | None = None) -> None:
        """Raise `CheckFailed` unless the log equals `log`, or the digest in the header.

        Raises `BadInput` when there is nothing to compare with.
        """
        if log is not None:
            where = first_difference(self.log, log)
            if where is not None:
                raise CheckFailed(
                    f"the replay decides differently: {where}",
                    "compare settings and versions of both runs",
                )
        elif self.equal is None:
            raise BadInput(
                "the facts name no log to compare with", "write log_sha256 into their header"
            )
        elif not self.equal:
            raise CheckFailed(
                f"the replay's log has digest {self.log_sha256[:16]}, the run's"
                f" {self.recorded_sha256[:16]}",
                "a fact was changed, or the settings or versions of the two runs differ",
            )


def replay_facts(
    facts: str | Path | tuple[FactsHeader, Sequence[FactRecord]],
    *,
    size: SessionSize | None = None,
    cost: CostModel | None = None,
) -> FactsReplay:
    """Return the decisions of a fresh scheduler on the facts of a file, or of header and records.

    `size` is needed only where bytes decide (`per_request`) and the header does not tell them;
    with `cost` the rounds also get estimated times. Raises `BadInput` when the facts cannot belong
    to a run under these settings, `BadTrace` when the file cannot be read, `NotCalibrated`.
    """
    header, records = read_facts(facts) if isinstance(facts, str | Path) else facts
    layout, size = layout_of(header, size)
    settings = settings_of(header)
    clock = CostExecutor([], cost.require(), size) if cost is not None else None
    scheduler = Scheduler(RowSpace(layout, size), settings)
    executor = FactsExecutor(records, step_tokens=settings.step_tokens, clock=clock)
    drive(scheduler, executor)
    log = tuple(scheduler.log)
    return FactsReplay(
        header=header,
        records=tuple(records),
        scheduler=scheduler,
        log=log,
        log_sha256=log_digest(log),
        recorded_sha256=_text(header, "log_sha256", None),
        clock=clock,
    )


def settings_of(header: FactsHeader) -> Settings:
    """Return the settings a header names; what it leaves out has its default. Raises `BadInput`."""
    default = Settings()
    return Settings(
        order=header.order,
        budget_tokens=header.budget_tokens,
        chunk_tokens=header.chunk_tokens,
        step_tokens=_whole(header, "step_tokens", default.step_tokens),
        grow_tokens=_whole(header, "grow", default.grow_tokens),
        gen_cap_tokens=_whole(header, "gen_cap", default.gen_cap_tokens),
        max_passed=_whole(header, "max_passed", default.max_passed),
        chunk_rule=_text(header, "chunk_rule", default.chunk_rule),  # type: ignore[arg-type]
        prefix_bytes=_whole(header, "prefix_bytes", 0),
        prefix_step_tokens=_whole(header, "prefix_step", default.prefix_step_tokens),
        boundary_tokens=_whole(header, "boundary", default.boundary_tokens),
        min_shared_tokens=_whole(header, "min_shared", default.min_shared_tokens),
    )


def layout_of(header: FactsHeader, size: SessionSize | None) -> tuple[Layout, SessionSize]:
    """Return the layout a header names and the bytes its sessions take. Raises `BadInput`."""
    if header.width > MAX_SESSIONS:
        raise _bad("W", header.width, f"at most {MAX_SESSIONS} lanes")
    row_bytes = _whole(header, "row_bytes", None)
    if size is None and row_bytes is not None:
        size = RowBytes(row_bytes, _whole(header, "fixed_bytes", 0))
    context = _whole(header, "context", None)
    # Fixed sessions are counted, not measured: one byte each, as many as the run had.
    counted, memory_bytes = RowBytes(0, 1), _whole(header, "sessions", header.width)
    if header.layout.strip().lower().startswith("per_request"):
        counted, memory_bytes = size, _whole(header, "memory_bytes", 0)
    if size is None and (counted is None or _whole(header, "prefix_bytes", 0)):
        raise BadInput(
            "the facts come from a run where bytes decide, but name no bytes",
            "write row_bytes and fixed_bytes into their header, or name the model",
        )
    layout = parse_layout(
        header.layout,
        size=counted,
        memory_bytes=memory_bytes,
        model_context_tokens=_whole(header, "model_context", context or 2**30),
        own_context_tokens=context,
        lanes=header.width,
    )
    cut = _text(header, "cut", layout.cut)
    return replace(layout, cut=cut), size or counted


def first_difference(log: Sequence[LogEntry], other: Sequence[LogEntry]) -> str | None:
    """Return the first place where two logs differ, in words, or None when they are equal.

    >>> entry = LogEntry(3, 1, "admit", 7, (0, 0, ""))
    >>> first_difference([entry], [entry._replace(round=4)])
    "entry 0: (3, 1, 'admit', 7, (0, 0, '')) against (4, 1, 'admit', 7, (0, 0, ''))"
    """
    for number, (one, two) in enumerate(zip(log, other, strict=False)):
        if one != two:
            return f"entry {number}: {tuple(one)} against {tuple(two)}"
    if len(log) != len(other):
        return f"{len(log)} entries against {len(other)}"
    return None


def _whole(header: FactsHeader, key: str, default: int | None) -> int | None:
    value = dict(header.extra).get(key, default)
    if value is default:
        return default
    if type(value) is not int or not 0 <= value < 2**63:
        raise _bad(key, value, "a whole number from 0 to 2^63 - 1")
    return value


def _text(header: FactsHeader, key: str, default: str | None) -> str | None:
    value = dict(header.extra).get(key, default)
    if value is not default and type(value) is not str:
        raise _bad(key, value, "text")
    return value


def _bad(key: str, value: object, what: str) -> BadTrace:
    return BadTrace(
        f"facts: line 1, column {key}: {str(value)[:40]!r} is not {what}",
        "correct the header",
        1,
        key,
    )
