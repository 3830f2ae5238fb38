"""qwisp: decide before you build. Fit, share, trust and decide on model serving.

Public names are imported on first use, so that `import qwisp` stays fast and pulls in neither mlx
nor the chart and widget libraries.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "ContextAdmission": "qwisp.memory.admission",
    "CostModel": "qwisp.cost",
    "Executor": "qwisp.scheduling.contract",
    "Footprint": "qwisp.memory.instruments",
    "Layout": "qwisp.scheduling.layout",
    "MachineSpec": "qwisp.spec.machine",
    "ModelSpec": "qwisp.spec.model",
    "QwispError": "qwisp.errors",
    "RowSpace": "qwisp.scheduling.row_space",
    "Scheduler": "qwisp.scheduling.scheduler",
    "SessionBytes": "qwisp.memory.session_bytes",
    "Settings": "qwisp.scheduling.settings",
    "Study": "qwisp.study",
    "Trace": "qwisp.trace.request",
    "cache_bytes": "qwisp.memory.footprint",
    "drive": "qwisp.scheduling.drive",
    "fit": "qwisp.memory.fit",
    "load_cost": "qwisp.cost",
    "load_machine": "qwisp.spec.catalog",
    "load_model": "qwisp.spec.catalog",
    "make_plan": "qwisp.planner",
    "parse_bytes": "qwisp.units",
    "parse_layout": "qwisp.scheduling.layout",
    "read_trace": "qwisp.trace.read",
    "replay": "qwisp.sim.replay",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'qwisp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
