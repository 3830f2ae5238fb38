"""Where the bundled data files are: `data/` of a checkout, `qwisp/_data` of an installed wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def data_root() -> Path:
    """Return the folder of bundled data; the wheel's own copy wins over a neighbour called data."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent / "data"


def data_path(*parts: str) -> Path:
    """Return the path of a bundled file or folder, which need not exist.

    >>> data_path("models").name
    'models'
    """
    return data_root().joinpath(*parts)
