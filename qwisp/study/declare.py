"""What a study says before it measures anything: a question, and the bars that would kill it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from qwisp.errors import BadInput
from qwisp.receipts import Receipt, ReceiptBook, hash_inputs

Reduce = Literal["only", "max", "min", "mean", "sum"]
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Criterion:
    """A bar. The study is killed when the value of `metric` lies `below` or `above` it.

    A value at the bar passes. The value is that of the one receipt of `metric`, or what `reduce`
    makes of `num_receipts` of them: their largest, smallest, mean or sum. Fewer receipts leave the
    criterion open. `unit` is that of bar and receipts ("" accepts any).
    """

    name: str
    metric: str
    bar: float
    kills_when: Literal["below", "above"]
    why: str
    reduce: Reduce = "only"
    num_receipts: int = 1
    unit: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.bar):
            raise BadInput(f"criterion {self.name!r} has the bar {self.bar}", "give a number")
        if self.kills_when not in ("below", "above"):
            what = f"criterion {self.name!r} kills when {self.kills_when!r}"
            raise BadInput(what, "write below or above")
        if self.reduce not in ("only", "max", "min", "mean", "sum"):
            what = f"criterion {self.name!r} reduces by {self.reduce!r}"
            raise BadInput(what, "write only, max, min, mean or sum")
        if self.num_receipts < 1 or (self.reduce == "only" and self.num_receipts != 1):
            what = f"criterion {self.name!r} takes {self.num_receipts} receipts by {self.reduce!r}"
            raise BadInput(what, "`only` takes 1 receipt, the others 1 or more")

    def kills(self, value: float) -> bool:
        """Whether `value` kills the study."""
        return value < self.bar if self.kills_when == "below" else value > self.bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question with its bars. `measure` makes the receipts, by one `book.once` per probe.

    `findings` returns sentences and `figures` pairs of chart and caption, both from receipts alone;
    they go into the report.
    """

    id: str
    question: str
    criteria: Sequence[Criterion]
    protocol: str
    measure: Callable[[ReceiptBook], None]
    findings: Callable[[Sequence[Receipt]], Sequence[str]] | None = None
    figures: Callable[[Sequence[Receipt]], Sequence[tuple[Any, str]]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "criteria", tuple(self.criteria))
        if not _ID.fullmatch(self.id):
            raise BadInput(f"study id {self.id[:80]!r} is not a name", "use a-z, 0-9 and _")
        if not self.criteria:
            raise BadInput(f"study {self.id} has 0 criteria", "say first what would kill it")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise BadInput(f"study {self.id} has two criteria of one name", "rename one")

    @property
    def declaration(self) -> list[dict[str, Any]]:
        """The criteria as they are hashed and written down before any measurement."""
        return [asdict(criterion) for criterion in self.criteria]

    @property
    def criteria_hash(self) -> str:
        """The hash that binds every receipt to these criteria."""
        return hash_inputs([self.id, self.declaration])
