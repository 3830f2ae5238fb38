"""A context that does not fit: one object, rendered alike by every surface."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal, NamedTuple

from qwisp.errors import BadInput
from qwisp.memory.projection import Term
from qwisp.units import format_bytes, format_tokens

Rule = Literal["positive", "native maximum", "unchunked KV budget", "machine memory"]


class Offer(NamedTuple):
    """A change that was checked to fit, with the bytes it needs (None: not limited by bytes)."""

    change: Literal[
        "smaller context", "fewer lanes", "chunked prefill", "smaller prefill chunk", "8-bit KV"
    ]
    value: int | str
    context_tokens: int
    needs_bytes: int | None

    def __str__(self) -> str:
        context = format_tokens(self.context_tokens)
        text = {
            "smaller context": f"context {context}",
            "fewer lanes": f"{self.value} lanes at {context}",
            "chunked prefill": f"chunked prefill at {context}",
            "smaller prefill chunk": f"prefill chunk {self.value} at {context}",
            "8-bit KV": f"8-bit KV at {context}",
        }[self.change]
        size = "" if self.needs_bytes is None else f" ({format_bytes(self.needs_bytes)})"
        return text + size


class ContextRefused(BadInput):
    """A context was refused; `refusal` carries the numbers."""

    def __init__(self, refusal: MemoryRefusal) -> None:
        super().__init__(refusal.what, refusal.todo)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRefusal:
    """The value, the limit it broke, the bytes it needs, the legal set, and what would fit."""

    rule: Rule
    context_tokens: int
    lanes: int
    prefill: str
    model: str
    native_max_tokens: int
    needs_bytes: int | None = None
    budget_bytes: int | None = None
    budget_rule: str = ""
    terms: tuple[Term, ...] = ()
    legal_tokens: tuple[int, ...] = ()
    offers: tuple[Offer, ...] = ()

    @property
    def what(self) -> str:
        """What happened, with the numbers, on one line."""
        asked = f"context {self.context_tokens:,}"
        if self.rule == "positive":
            return f"{asked} is not above zero"
        if self.rule == "native maximum":
            return f"{asked} is above the native maximum {self.native_max_tokens:,} of {self.model}"
        needs, budget = format_bytes(self.needs_bytes or 0), format_bytes(self.budget_bytes or 0)
        lanes = f" x {self.lanes} lanes" if self.lanes > 1 else ""
        if self.rule == "unchunked KV budget":
            return f"{asked}{lanes} needs {needs} of KV without chunked prefill, above the {budget}"
        return f"{asked}{lanes} needs {needs}, above {budget} ({self.budget_rule})"

    @property
    def todo(self) -> str:
        """What to do: the counter-offers, nearest first, else the legal set."""
        if self.offers:
            return "would fit: " + "; ".join(str(offer) for offer in self.offers)
        if self.legal_tokens:
            return f"use one of {', '.join(format_tokens(rung) for rung in self.legal_tokens)}"
        return "nothing would fit: use a larger machine or a smaller model"

    def __str__(self) -> str:
        return f"{self.what}\n{self.todo}"

    def error(self) -> ContextRefused:
        """Return the error that a command line or a server raises."""
        return ContextRefused(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the two lines that the others print."""
        values = asdict(self)
        values["offers"] = [{**offer._asdict(), "text": str(offer)} for offer in self.offers]
        return {"what": self.what, "todo": self.todo, **values}

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.what)}</b><br>{escape(self.todo)}</p>"
