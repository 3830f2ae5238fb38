"""What the simulator writes down: one record a request, one line a run of equal rounds."""

from __future__ import annotations

from array import array

from qwisp.scheduling.contract import Ask, End


class RequestRecord:
    """The life of one request in picoseconds; -1 where something never happened."""

    __slots__ = (
        "admitted_ps",
        "arrival_ps",
        "ask",
        "end_ps",
        "first_ps",
        "held_rows",
        "id",
        "joined_step",
        "longest_pause_ps",
        "moves",
        "outcome",
        "output_tokens",
        "paused_ps",
        "paused_since_ps",
        "pauses",
        "produced",
        "prompt_tokens",
        "reason",
        "slots",
        "stop_step",
        "truncated",
    )

    def __init__(self, ask: Ask, output_tokens: int, arrival_ps: int) -> None:
        self.ask = ask
        self.id = ask.id
        self.prompt_tokens = ask.prompt_tokens
        self.output_tokens = output_tokens
        self.arrival_ps = arrival_ps
        self.admitted_ps = -1
        self.first_ps = -1
        self.end_ps = -1
        self.outcome = ""
        self.reason = ""
        self.truncated = False
        self.produced = 0
        self.moves = 0
        self.pauses = 0
        self.paused_ps = 0
        self.longest_pause_ps = 0
        self.paused_since_ps = -1
        self.slots: list[int] = []
        self.held_rows = 0
        self.joined_step = 0
        self.stop_step = -1

    def tokens_from(self, now_ps: int) -> None:
        """Note the first token, or the first one after a pause and how long it was missed."""
        if self.first_ps < 0:
            self.first_ps = now_ps
        if self.paused_since_ps >= 0:
            self.longest_pause_ps = max(self.longest_pause_ps, now_ps - self.paused_since_ps)
            self.paused_since_ps = -1

    def end(self, op: End, now_ps: int) -> None:
        """Note the end; a request refused on arrival never waited."""
        self.end_ps = self.arrival_ps if op.outcome == "refused" else now_ps
        self.outcome, self.reason, self.truncated = op.outcome, op.reason, op.truncated
        if self.paused_since_ps >= 0:
            self.paused_ps += now_ps - self.paused_since_ps
            self.paused_since_ps = -1


class RoundTable:
    """Columns of runs: `rounds` equal rounds from `index`, `width` decoders, `grants_ps` prefill.

    `last_ps` is the duration of the last of them, the longest of a run whose rows grow. Grows by
    one line per answer of the scheduler, not per repeated step.
    """

    __slots__ = (
        "begin_ps",
        "end_ps",
        "grants_ps",
        "index",
        "last_ps",
        "rounds",
        "used_rows",
        "width",
    )

    def __init__(self) -> None:
        self.index: list[int] = []
        self.begin_ps: list[int] = []
        self.end_ps: list[int] = []
        self.rounds = array("q")
        self.width = array("q")
        self.used_rows = array("q")
        self.last_ps: list[int] = []
        self.grants_ps: list[int] = []

    def add(
        self,
        index: int,
        begin_ps: int,
        end_ps: int,
        rounds: int,
        width: int,
        used_rows: int,
        last_ps: int,
        grants_ps: int,
    ) -> None:
        """Append one run."""
        self.index.append(index)
        self.begin_ps.append(begin_ps)
        self.end_ps.append(end_ps)
        self.rounds.append(rounds)
        self.width.append(width)
        self.used_rows.append(used_rows)
        self.last_ps.append(last_ps)
        self.grants_ps.append(grants_ps)

    def __len__(self) -> int:
        return len(self.index)
