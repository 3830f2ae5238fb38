"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _shared(name: str) -> Path:
    folder = Path(os.environ.get("QWISP_SHARED", ROOT.parent / "shared")) / name
    if not folder.is_dir():
        pytest.skip(f"the reference files beside the project are absent: no {name}/ in ../shared")
    return folder


@pytest.fixture(scope="session")
def truth_dir() -> Path:
    """Folder of published measurements and allocator truth."""
    return _shared("truth")


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Folder of public request traces."""
    return _shared("traces")
