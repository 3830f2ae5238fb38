"""Prefill, decode and copy times, fitted from measurements, with their residuals."""

from qwisp.cost.model import ChunkRule, CostModel, Residual, depth_sum

__all__ = ["ChunkRule", "CostModel", "Residual", "depth_sum"]
