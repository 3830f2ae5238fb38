"""Tools to test an executor, an order or a cut of your own."""

from qwisp.testing.scenario import Played, RowBytes, play, sessions
from qwisp.testing.script import Script, ScriptedRequest
from qwisp.testing.toy_engine import RowsLost, ToyEngine, solo_reply

__all__ = [
    "Played",
    "RowBytes",
    "RowsLost",
    "Script",
    "ScriptedRequest",
    "ToyEngine",
    "play",
    "sessions",
    "solo_reply",
]
