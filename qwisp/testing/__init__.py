"""Tools to test an executor, an order or a cut of your own."""

from qwisp.testing.script import Script, ScriptedRequest
from qwisp.testing.toy_engine import RowsLost, ToyEngine, solo_reply

__all__ = ["RowsLost", "Script", "ScriptedRequest", "ToyEngine", "solo_reply"]
