"""Helpers of the engine tests: tiny random models, scripted clients, one driven run."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mlx
