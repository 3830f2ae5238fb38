"""Prefill, decode and copy times, fitted from measurements, with their residuals."""

from qwisp.cost.model import ChunkRule, CostModel, Residual, depth_sum
from qwisp.cost.store import (
    calibrated_pairs,
    calibration_path,
    load_cost,
    own_folder,
    read_cost,
    write_cost,
)

__all__ = [
    "ChunkRule",
    "CostModel",
    "Residual",
    "calibrated_pairs",
    "calibration_path",
    "depth_sum",
    "load_cost",
    "own_folder",
    "read_cost",
    "write_cost",
]
