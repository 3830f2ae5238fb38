"""A request inside the scheduler: waiting, prefilling, decoding or paused."""

from __future__ import annotations

from qwisp.scheduling.contract import Ask, Place

WAITING, PREFILL, DECODE, PAUSED, OVER = range(5)
STATE_NAMES = ("waiting", "prefill", "decode", "paused", "over")


class Stream:
    """Bookkeeping of one request.

    `cap_tokens` is the most it may produce (never the actual length). While it decodes, the tokens
    produced are `base + steps - joined`, where `steps` is the scheduler's count of decode rounds:
    a decode round costs no bookkeeping per stream.
    """

    __slots__ = (
        "arrived_round",
        "ask",
        "base",
        "cap_tokens",
        "id",
        "joined",
        "passed",
        "place",
        "position",
        "prefill_end",
        "prompt_tokens",
        "seq",
        "settled",
        "state",
        "wait_binding",
        "want_rows",
    )

    def __init__(self, ask: Ask, cap_tokens: int, want_rows: int, arrived_round: int) -> None:
        self.ask = ask
        self.id = ask.id
        self.prompt_tokens = ask.prompt_tokens
        self.cap_tokens = cap_tokens
        self.want_rows = want_rows
        self.arrived_round = arrived_round
        self.state = WAITING
        self.place: Place | None = None
        self.position = 0
        self.prefill_end = 0
        self.base = 0
        self.joined = 0
        self.seq = 0
        self.passed = 0
        self.settled = False
        self.wait_binding = ""

    def produced(self, steps: int) -> int:
        """Return tokens produced so far."""
        return self.base + steps - self.joined if self.state == DECODE else self.base

    def length(self, steps: int) -> int:
        """Return prompt and reply tokens so far."""
        return self.prompt_tokens + self.produced(steps)
