"""Find an order or a cut by its file name, so that a new one needs no other edit."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from qwisp.errors import BadInput
from qwisp.scheduling import cuts, orders


def rule_names(kind: str) -> list[str]:
    """Return the names of the shipped rules of a kind: `orders` or `cuts`."""
    folder = {"orders": orders, "cuts": cuts}[kind].__path__
    return sorted(module.name for module in pkgutil.iter_modules(folder))


def load_rule(kind: str, name: str, function: str) -> ModuleType:
    """Return the module `name` (or the file, when it ends in `.py`) that defines `function`.

    Raises `BadInput` naming the known rules.

    >>> load_rule("orders", "fcfs", "pick").PASSES
    False
    """
    if name.endswith(".py"):
        module = _from_file(Path(name))
    elif name in rule_names(kind):
        module = _SHIPPED[kind](name)
    else:
        raise BadInput(
            f"{kind[:-1]} {name!r} is not known",
            f"use one of {', '.join(rule_names(kind))}, or the path of your own .py file",
        )
    if not callable(getattr(module, function, None)):
        raise BadInput(
            f"{name} defines no {function}()", f"define {function}() as in qwisp/scheduling/{kind}"
        )
    if name.endswith(".py"):
        setattr(module, function, _guarded(name, getattr(module, function), _ALLOWS[kind]))
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


_ALLOWS = {"orders": _is_waiting, "cuts": _is_free}
_SHIPPED = {
    "orders": lambda name: importlib.import_module(f"qwisp.scheduling.orders.{name}"),
    "cuts": lambda name: importlib.import_module(f"qwisp.scheduling.cuts.{name}"),
}


def _from_file(path: Path) -> ModuleType:
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
    return module
