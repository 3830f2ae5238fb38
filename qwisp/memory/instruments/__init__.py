"""Instruments: every memory figure a platform gives for one process, each under its own name."""

from qwisp.memory.instruments.footprint import Footprint
from qwisp.memory.instruments.reading import HEADLINES, Reading, difference_bytes

__all__ = ["HEADLINES", "Footprint", "Reading", "difference_bytes"]
