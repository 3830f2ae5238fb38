"""How memory is cut, as people write it: `65536,32768x3`, `whole_window:2`, `per_request:8GiB`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from qwisp.errors import BadInput
from qwisp.scheduling.arena_rows import MAX_ROWS, ArenaRows, SessionSize, free_rows
from qwisp.units import GIB, parse_bytes, parse_tokens

MARGIN_ROWS = 32
MAX_SESSIONS = 4096
DEFAULT_LANES = 8
DEFAULT_OWN_CONTEXT_TOKENS = 32768

_ITEM = re.compile(r"([0-9]{1,19})\s*([kK]?)(?:\s*[xX]\s*([0-9]{1,19}))?", re.ASCII)


class RowBytes(NamedTuple):
    """Sessions whose rows all cost the same. By default a budget in bytes is one in rows."""

    row_bytes: int = 1
    fixed_bytes: int = 0

    def bytes(self, rows: int) -> int:
        """Return the bytes of one session of `rows` rows."""
        return self.fixed_bytes + rows * self.row_bytes

    def lane_bytes(self, rows: int) -> int:
        """Return the part of them that is not rows."""
        del rows
        return self.fixed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sessions (`contexts`, tokens each, with `margin_rows` more rows) or one free budget.

    `cut` names the placing rule; `grows` says that streams move and pause; `lanes` bounds how many
    run at once.
    """

    text: str
    kind: Literal["sized", "whole_window", "fixed_arena", "per_request"]
    contexts: tuple[int, ...] = ()
    margin_rows: int = 0
    lanes: int
    cut: str
    budget_bytes: int = 0
    context_tokens: int

    @classmethod
    def sessions(cls, *contexts: int, margin_rows: int = 0, text: str = "") -> Layout:
        """Return exactly these sized sessions; their streams grow and move.

        >>> Layout.sessions(64, 16, 16).text
        '64,16,16'
        """
        return cls(
            text=text or ",".join(map(str, contexts)),
            kind="sized",
            contexts=contexts,
            margin_rows=margin_rows,
            lanes=len(contexts),
            cut="smallest_fit",
            context_tokens=max(contexts),
        )

    @classmethod
    def windows(
        cls,
        count: int,
        context_tokens: int,
        *,
        kind: Literal["whole_window", "fixed_arena"] = "whole_window",
        text: str = "",
    ) -> Layout:
        """Return `count` equal sessions in which a stream stays from its start to its end.

        >>> Layout.windows(2, 4096).contexts
        (4096, 4096)
        """
        return cls(
            text=text or f"{kind}:{count if kind == 'whole_window' else context_tokens}",
            kind=kind,
            contexts=(context_tokens,) * count,
            lanes=count,
            cut="first_free",
            context_tokens=context_tokens,
        )

    @classmethod
    def free(
        cls, budget_bytes: int, context_tokens: int, *, lanes: int = DEFAULT_LANES, text: str = ""
    ) -> Layout:
        """Return one budget, cut as requests come; none of them passes `context_tokens`."""
        return cls(
            text=text or f"per_request:{budget_bytes}",
            kind="per_request",
            lanes=lanes,
            cut="best_fit",
            budget_bytes=budget_bytes,
            context_tokens=context_tokens,
        )

    @property
    def grows(self) -> bool:
        """Streams may start in a session smaller than their reply and move."""
        return self.kind == "sized"

    def arena(self, size: SessionSize) -> ArenaRows:
        """Return the rows to allocate. Raises `BadInput` where a budget leaves none."""
        if self.kind == "per_request":
            return free_rows(
                size,
                budget_bytes=self.budget_bytes,
                lanes=self.lanes,
                context_tokens=self.context_tokens,
            )
        rows = tuple(context + self.margin_rows for context in self.contexts)
        return ArenaRows(rows, rows)

    def num_bytes(self, size: SessionSize) -> int:
        """Return the bytes of the arena: all sessions, or a free run and every lane beside it."""
        return self.arena(size).num_bytes(size)


def parse_sessions(text: str, *, max_sessions: int = MAX_SESSIONS) -> tuple[int, ...]:
    """Return the contexts of a session list, in the order written.

    Items are `CONTEXT` or `CONTEXTxN`, with an optional `k` (1,024) and white space. Counts and
    sums are checked before anything is built. Raises `BadInput` naming item and column.

    >>> parse_sessions("64k, 16384x3")
    (65536, 16384, 16384, 16384)
    """
    contexts: list[int] = []
    total_rows = 0
    column = 1
    for number, raw in enumerate(text.split(","), 1):
        where = f"item {number} of the session list (column {column})"
        column += len(raw) + 1
        item = raw.strip()
        if not item:
            raise BadInput(f"{where} is empty", "write contexts like 65536,32768x3,16384x11")
        match = _ITEM.fullmatch(item)
        if match is None:
            raise BadInput(
                f"{where} is {item[:40]!r}, not a session",
                "write CONTEXT or CONTEXTxN, like 32768x3",
            )
        context = int(match[1]) * (1024 if match[2] else 1)
        count = int(match[3]) if match[3] else 1
        if context == 0 or count == 0:
            raise BadInput(
                f"{where} is {item!r}: zero is no session", "give at least one token, once"
            )
        if count > max_sessions - len(contexts):
            raise BadInput(
                f"{where} is {item!r}: {len(contexts)} + {count} sessions pass {max_sessions}",
                "ask for fewer sessions",
            )
        total_rows += (context + MARGIN_ROWS) * count
        if total_rows > MAX_ROWS:
            raise BadInput(
                f"{where} is {item!r}: the list passes {MAX_ROWS:,} rows",
                "ask for smaller sessions",
            )
        contexts.extend([context] * count)
    return tuple(contexts)


def parse_layout(
    text: str,
    *,
    size: SessionSize,
    memory_bytes: int,
    model_context_tokens: int,
    own_context_tokens: int | None = None,
    lanes: int | None = None,
    machine_bytes: int | None = None,
) -> Layout:
    """Return the layout that `text` means for a model and its session memory.

    A list is added to the engine's own session of `own_context_tokens`. `whole_window` and
    `fixed_arena` without a count take as many sessions as fit `memory_bytes`, at least one (a
    layout that does not fit is the caller's infeasible row). `per_request` without a budget takes
    the default of a machine with `machine_bytes`, or all of `memory_bytes`; state and rings of all
    its lanes come out of it. Raises `BadInput`.
    """
    said = text.strip()
    name, _, argument = said.partition(":")
    name = name.strip().lower()
    context = own_context_tokens or model_context_tokens
    if context > model_context_tokens:
        raise BadInput(
            f"context {context:,} is above the model's {model_context_tokens:,} tokens",
            f"set --context to {model_context_tokens} or less",
        )
    if name == "whole_window":
        count = (
            _count(argument, "whole_window:n")
            if argument
            else _as_many(size, context, memory_bytes)
        )
        return _with_lanes(Layout.windows(count, context, text=said), lanes)
    if name == "fixed_arena":
        if not argument:
            raise BadInput("fixed_arena names no cap", "write fixed_arena:16384")
        cap = min(parse_tokens(argument), context)
        count = _as_many(size, cap, memory_bytes)
        return _with_lanes(Layout.windows(count, cap, kind="fixed_arena", text=said), lanes)
    if name == "per_request":
        default = memory_bytes
        if machine_bytes is not None:
            default = min(memory_bytes, request_budget_bytes(machine_bytes))
        budget = parse_bytes(argument, of_bytes=memory_bytes) if argument else default
        layout = _with_lanes(Layout.free(budget, context, text=said), lanes)
        layout.arena(size)  # refuses a budget that its lanes use up
        return layout
    if not said or not (said[0].isdigit() or "," in said):
        raise BadInput(
            f"layout {text!r} is not known",
            "write a list like 65536,32768x3, or whole_window[:n], fixed_arena:CAP, "
            "per_request[:BUDGET]",
        )
    own = own_context_tokens or min(DEFAULT_OWN_CONTEXT_TOKENS, model_context_tokens)
    contexts = (own, *parse_sessions(text, max_sessions=MAX_SESSIONS - 1))
    largest = max(contexts)
    if largest > model_context_tokens:
        raise BadInput(
            f"session of {largest:,} tokens is above the model's {model_context_tokens:,}",
            f"use sessions of {model_context_tokens} tokens or less",
        )
    return _with_lanes(Layout.sessions(*contexts, margin_rows=MARGIN_ROWS, text=said), lanes)


def request_budget_bytes(machine_bytes: int) -> int:
    """Return the default budget of `per_request`: 8 GiB from 48 GiB of memory on, 4 GiB below.

    >>> request_budget_bytes(64 * GIB) // GIB, request_budget_bytes(36 * GIB) // GIB
    (8, 4)
    """
    return (8 if machine_bytes >= 48 * GIB else 4) * GIB


def _with_lanes(layout: Layout, lanes: int | None) -> Layout:
    return replace(layout, lanes=lanes) if lanes else layout


def _count(argument: str, example: str) -> int:
    if not argument.strip().isascii() or not argument.strip().isdigit() or len(argument) > 9:
        raise BadInput(f"count {argument!r} is not a whole number", f"write {example}, like :2")
    count = int(argument)
    if not 1 <= count <= MAX_SESSIONS:
        raise BadInput(f"{count} sessions asked", f"ask for 1 to {MAX_SESSIONS}")
    return count


def _as_many(size: SessionSize, context_tokens: int, memory_bytes: int) -> int:
    return max(1, min(MAX_SESSIONS, memory_bytes // max(1, size.bytes(context_tokens))))
