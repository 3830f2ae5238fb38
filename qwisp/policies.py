"""Orders and cuts by name: those that are shipped, and files of one's own.

The scheduler takes functions and knows no files; here their names become functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from qwisp.errors import BadInput
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import Cut, Order, shipped_cut, shipped_order
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings


def scheduler_for(layout: Layout, size: SessionSize, settings: Settings | None = None) -> Scheduler:
    """Return a fresh scheduler under the order and the cut that settings and layout name.

    Raises `BadInput` for a rule that is not known and a file that cannot serve.
    """
    settings = settings or Settings()
    return Scheduler(space_for(layout, size), settings, load_order(settings.order))


def space_for(layout: Layout, size: SessionSize) -> RowSpace:
    """Return the free row space of a layout, cut as it names. Raises `BadInput`."""
    return RowSpace(layout, size, load_cut(layout.cut))


def load_order(name: str) -> Order:
    """Return the shipped order `name`, or that of a file that ends in `.py`. Raises `BadInput`.

    >>> load_order("fcfs").passes
    False
    """
    if not name.endswith(".py"):
        return shipped_order(_known("orders", name))
    module = _own("orders", name, "pick")
    return Order(_guarded(name, module.pick, _is_waiting), getattr(module, "PASSES", True))


def load_cut(name: str) -> Cut:
    """Return the shipped cut `name`, or that of a file that ends in `.py`. Raises `BadInput`."""
    if not name.endswith(".py"):
        return shipped_cut(_known("cuts", name))
    return _guarded(name, _own("cuts", name, "place").place, _is_free)


def rule_names(kind: str) -> list[str]:
    """Return the names of the shipped rules of a kind: `orders` or `cuts`."""
    package = importlib.import_module(f"qwisp.scheduling.{kind}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def _known(kind: str, name: str) -> str:
    if name not in rule_names(kind):
        raise BadInput(
            f"{kind[:-1]} {name!r} is not known",
            f"use one of {', '.join(rule_names(kind))}, or the path of your own .py file",
        )
    return name


def _own(kind: str, name: str, function: str) -> ModuleType:
    """Return the module of a user's own file, which defines `function`."""
    path = Path(name)
    if not path.is_file():
        raise BadInput(f"policy file {path} does not exist", "give the path of a .py file")
    spec = importlib.util.spec_from_file_location(f"qwisp_policy_{path.stem}", path)
    assert spec is not None  # a path that ends in .py always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that exits must not end us silently
        raise BadInput(
            f"policy file {path} cannot be loaded: {type(error).__name__}: {error}", "mend the file"
        ) from error
    if not callable(getattr(module, function, None)):
        raise BadInput(
            f"{name} defines no {function}()", f"define {function}() as in qwisp/scheduling/{kind}"
        )
    return module


def _guarded(name: str, rule: Callable, allows: Callable) -> Callable:
    """Return the rule of a user's own file; what goes wrong in it is told by the file's name."""

    def guarded(*args: object) -> object:
        try:
            answer = rule(*args)
        except (Exception, SystemExit) as error:  # any fault of a user's own file is theirs
            raise BadInput(
                f"policy file {name} raises {type(error).__name__}: {error}", "mend the file"
            ) from error
        if answer is not None and not allows(answer, *args):
            raise BadInput(
                f"policy file {name} answers {answer!r}, which cannot be", "mend the file"
            )
        return answer

    return guarded


def _is_waiting(index: object, waiting: Sequence, *_: object) -> bool:
    return isinstance(index, int) and 0 <= index < len(waiting)


def _is_free(run: object, rows: int, free: Sequence[range]) -> bool:
    return (
        isinstance(run, range)
        and run.step == 1
        and len(run) >= rows
        and any(part.start <= run.start and run.stop <= part.stop for part in free)
    )
