"""What the log tells of every kind of decision, by name."""

from __future__ import annotations

import json

import pytest

from qwisp.scheduling.contract import DETAILS
from qwisp.scheduling.settings import Settings
from qwisp.testing import Played, ScriptedRequest, play, sessions


@pytest.fixture(scope="module")
def played() -> Played:
    """Two small sessions and a large one; request 1 outgrows its own while 0 holds the large one.

    0 (prompt 20) sits in the 64. 1 and 2 (prompt 4) decode in 16s from round 0 on and are full
    after 12 tokens: 1 pauses until 0 has ended, 2 has ended before. 3 can never run; 4 waits and
    is cancelled.
    """
    asks = [
        ScriptedRequest(0, 20, 18, max_new=40),
        ScriptedRequest(1, 4, 30, max_new=30),
        ScriptedRequest(2, 4, 8),
        ScriptedRequest(3, 90, 5, arrives=1),
        ScriptedRequest(4, 4, 5, max_new=9, arrives=2, cancelled=5),
    ]
    return play(sessions(16, 16, 64), asks, Settings(grow_tokens=4))


def told(played: Played, kind: str) -> list[tuple]:
    return [(entry.id, entry.what._asdict()) for entry in played.log if entry.kind == kind]


def test_each_kind_is_told_by_name(played: Played) -> None:
    assert told(played, "arrive")[0] == (0, {"prompt_tokens": 20, "max_new": 40})
    assert told(played, "arrive")[2] == (2, {"prompt_tokens": 4, "max_new": None})
    assert told(played, "admit")[:2] == [
        (0, {"slot": 2, "start_row": 32, "waited_for": "", "passed": 0}),
        (1, {"slot": 0, "start_row": 0, "waited_for": "", "passed": 0}),
    ]
    assert told(played, "wait") == [(4, {"resource": "no free session large enough"})]
    assert told(played, "pause") == [(1, {"slot": 0})]
    assert told(played, "resume") == [(1, {"slot": 2})]
    assert told(played, "decode")[0] == (0, {})
    assert told(played, "cancelled") == [
        (4, {"reason": "cancelled by its client", "num_tokens": 0})
    ]
    assert told(played, "finished") == [
        (2, {"reason": "stop", "num_tokens": 8}),
        (0, {"reason": "stop", "num_tokens": 18}),
        (1, {"reason": "stop", "num_tokens": 30}),
    ]
    ((refused, why),) = told(played, "refused")
    assert refused == 3
    assert "64 is the most" in why["reason"]
    assert "tokens" in why["counter_offer"]
    assert list(why) == ["reason", "counter_offer"]


def test_the_decisions_of_a_kind_come_in_the_order_of_the_log(played: Played) -> None:
    for kind, shape in DETAILS.items():
        found = list(played.scheduler.told(kind))
        assert found == [(entry.id, entry.detail) for entry in played.log if entry.kind == kind]
        assert all(type(what) is shape for _, what in found)


def test_a_file_keeps_plain_values(played: Played) -> None:
    """Digests of logs are taken over these lines: names may change, they may not."""
    entry = next(entry for entry in played.log if entry.kind == "admit")
    assert json.dumps(entry) == '[0, 1, "admit", 0, [2, 32, "", 0]]'
    assert type(entry.detail) is tuple
