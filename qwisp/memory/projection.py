"""Memory by term: every byte has a name, a reason, and a word on how it is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Provenance = Literal["exact", "measured here", "borrowed", "unmeasured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Bytes with a name; `num_bytes` is None exactly when `provenance` is `unmeasured`.

    *exact* follows from geometry or a file's size, *measured here* was fitted on this model and
    machine, *borrowed* on another. `is_counted` is false for memory that stands beside the total,
    like weights mapped from a file, whose pages the system may drop at any time.
    """

    name: str
    num_bytes: int | None
    provenance: Provenance
    note: str = ""
    is_counted: bool = True

    def __post_init__(self) -> None:
        assert (self.num_bytes is None) == (self.provenance == "unmeasured")


@dataclass(frozen=True, slots=True)
class Projection:
    """The memory of one configuration, term by term."""

    terms: tuple[Term, ...]

    @property
    def known_bytes(self) -> int:
        """Sum of the counted terms that are known: a lower bound when something is unmeasured."""
        return sum(term.num_bytes or 0 for term in self.terms if term.is_counted)

    @property
    def unmeasured(self) -> tuple[Term, ...]:
        """The counted terms nobody has a figure for."""
        return tuple(t for t in self.terms if t.is_counted and t.num_bytes is None)

    @property
    def total_bytes(self) -> int | None:
        """The sum, or None while a term is unmeasured: a cell that stays blank."""
        return None if self.unmeasured else self.known_bytes

    @property
    def provenance(self) -> Provenance:
        """The weakest provenance among the counted terms."""
        order: tuple[Provenance, ...] = ("exact", "measured here", "borrowed", "unmeasured")
        return max((t.provenance for t in self.terms if t.is_counted), key=order.index)

    def __getitem__(self, name: str) -> int:
        """Return the bytes of the term called `name` (0 while unmeasured)."""
        return next(term.num_bytes or 0 for term in self.terms if term.name == name)


def project(terms: Iterable[Term | None]) -> Projection:
    """Return the projection of the terms that are there."""
    return Projection(tuple(term for term in terms if term is not None))
