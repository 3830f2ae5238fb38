"""What is asked of the scheduler lab, as typed: kept as text, so that it can be shared and mended.

Nothing is read or computed here. A scenario has a short form for links and the command line that
answers the same question.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qsl, urlencode

from qwisp.errors import BadInput
from qwisp.spec.data_files import data_path

VERSION = "v1"
MAX_CHARS = 4000
_POLICY = ("layout", "context", "order", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model, a machine, a trace and one policy; or two, where any field ending in `_b` is given.

    `trace` is a path or the name of a bundled trace; an empty text is the command line's default.
    Policy B is policy A with the non-empty `_b` fields in their place.

    >>> Scenario(layout="16384x4", rate="0.5x").to_string()
    'v1&layout=16384x4&rate=0.5x'
    """

    model: str = "qwen3.6-35b-a3b"
    machine: str = "m1-max-64gb"
    memory: str = "12GiB"
    trace: str = "agents"
    layout: str = "65536,32768x3,16384x11"
    order: str = "fcfs"
    budget: str = ""
    context: str = ""
    grow: str = ""
    rate: str = "1x"
    max_new: str = "unset"
    layout_b: str = ""
    context_b: str = ""
    order_b: str = ""
    budget_b: str = ""

    @property
    def has_b(self) -> bool:
        """Whether two policies are compared."""
        return any(getattr(self, f"{name}_b").strip() for name in _POLICY)

    @property
    def a(self) -> Scenario:
        """The question with policy A alone."""
        return replace(self, **{f"{name}_b": "" for name in _POLICY})

    @property
    def b(self) -> Scenario:
        """The question with policy B alone."""
        given = {name: getattr(self, f"{name}_b").strip() for name in _POLICY}
        return replace(self.a, **{name: text for name, text in given.items() if text})

    @property
    def trace_path(self) -> str:
        """The path of the trace: a bundled one by its name, relative to the working folder."""
        bundled = data_path("traces", f"{self.trace.strip()}.jsonl")
        if self.trace.strip() in bundled_traces():
            return os.path.relpath(bundled)
        return self.trace.strip()

    def to_string(self) -> str:
        """Return the version and what differs from its defaults, safe in a link."""
        changed = [
            (f.name, getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return "&".join(filter(None, (VERSION, urlencode(changed))))

    @classmethod
    def from_string(cls, text: str) -> Scenario:
        """Return the scenario of `to_string`, or of a link that ends in `#` and one.

        Raises `BadInput`; a string from somebody else never names a policy file to be run.
        """
        text = text.strip().rsplit("#", 1)[-1]
        version, _, rest = text.partition("&")
        if version != VERSION or len(text) > MAX_CHARS:
            raise _bad(f"starts with {version[:20]!r} and has {len(text)} characters")
        try:
            pairs = parse_qsl(
                rest,
                keep_blank_values=True,
                strict_parsing=bool(rest),
                errors="strict",
                max_num_fields=len(fields(cls)),
            )
        except ValueError as error:
            raise _bad(str(error)) from None
        known = {f.name for f in fields(cls)}
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known or name in found:
                raise _bad(f"names {name[:40]!r} {'twice' if name in found else ', not a field'}")
            if not value.isprintable():
                raise _bad(f"has control characters in {name}")
            if name.startswith("order") and value.strip().lower().endswith(".py"):
                raise BadInput(
                    f"the scenario wants to run the policy file {value[:60]!r}",
                    "look at that file, then type its name as the order yourself",
                )
            found[name] = value
        return cls(**found)

    def command(self) -> str:
        """Return the command line that replays policy A (`.b.command()` that of B)."""
        words = ["qwisp", "replay"]
        for f in fields(self):
            text = self.trace_path if f.name == "trace" else getattr(self, f.name).strip()
            if text and not f.name.endswith("_b"):
                words += [f"--{f.name.replace('_', '-')}", text]
        return shlex.join(words)


def bundled_traces() -> list[str]:
    """Return the names of the traces that come with qwisp.

    >>> "agents" in bundled_traces()
    True
    """
    return sorted(path.stem for path in data_path("traces").glob("*.jsonl"))


def _bad(what: str) -> BadInput:
    return BadInput(
        f"scenario string {what}",
        f"paste one that the lab wrote: {VERSION}&layout=..., at most {MAX_CHARS:,} characters",
    )
