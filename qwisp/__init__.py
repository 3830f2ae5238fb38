"""qwisp: decide before you build. Fit, share, trust, probe and decide on model serving.

Public names are imported on first use, so that `import qwisp` stays fast and pulls in neither mlx
nor the chart and widget libraries.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "ContextAdmission": "qwisp.context_rule",
    "Footprint": "qwisp.memory.instruments",
    "MachineSpec": "qwisp.spec.machine",
    "fit": "qwisp.memory.fit",
    "load_machine": "qwisp.spec.machine",
    "QwispError": "qwisp.errors",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'qwisp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
