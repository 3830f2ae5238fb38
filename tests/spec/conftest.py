"""Tiny configs of every family, written for these tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


@pytest.fixture(scope="session")
def configs() -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))}
