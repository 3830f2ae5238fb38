"""What an order and a cut are, and the shipped ones, found by the names of their files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from qwisp.errors import BadInput

if TYPE_CHECKING:
    from qwisp.scheduling.stream import Stream

Cut = Callable[[int, Sequence[range]], range | None]
"""`place(rows, free) -> range | None`: where a stream that needs `rows` rows goes."""


class Order(NamedTuple):
    """`pick(waiting, fits, max_passed) -> index | None`: who of the waiting starts now.

    `passes` says that it may let one pass another; without that an arrival behind a waiting head
    cannot change a decision.
    """

    pick: Callable[[Sequence[Stream], Callable[[int], bool], int], int | None]
    passes: bool = True


def shipped_order(name: str) -> Order:
    """Return the order of `scheduling/orders/NAME.py`. Raises `BadInput` where there is none.

    >>> shipped_order("fcfs").passes, shipped_order("sjf").passes
    (False, True)
    """
    module = _shipped("orders", name)
    return Order(module.pick, getattr(module, "PASSES", True))


def shipped_cut(name: str) -> Cut:
    """Return the cut of `scheduling/cuts/NAME.py`. Raises `BadInput` where there is none."""
    return _shipped("cuts", name).place


def _shipped(kind: str, name: str) -> ModuleType:
    if name.isidentifier():
        path = f"qwisp.scheduling.{kind}.{name}"
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:  # a shipped rule lacks something: that is no matter of names
                raise
    raise BadInput(
        f"no {kind[:-1]} {name!r} is shipped",
        f"name a file of qwisp/scheduling/{kind}, or load your own as qwisp.policies does",
    )
