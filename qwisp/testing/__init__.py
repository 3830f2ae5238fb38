"""Tools to test an executor, an order or a cut of your own."""

from qwisp.testing.check import Report, check_executor
from qwisp.testing.contract_watch import Finding
from qwisp.testing.exercised import Exercised
from qwisp.testing.scenario import Played, RowBytes, play, sessions
from qwisp.testing.script import Script, ScriptedRequest
from qwisp.testing.toy_engine import RowsLost, ToyEngine, solo_reply

__all__ = [
    "Exercised",
    "Finding",
    "Played",
    "Report",
    "RowBytes",
    "RowsLost",
    "Script",
    "ScriptedRequest",
    "ToyEngine",
    "check_executor",
    "play",
    "sessions",
    "solo_reply",
]
