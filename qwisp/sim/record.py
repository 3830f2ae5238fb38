"""What the simulator writes down: one record a request, one line a run of equal rounds."""

from __future__ import annotations

from itertools import chain

import numpy as np

from qwisp.scheduling.contract import Ask, End


class RequestRecord:
    """The life of one request in picoseconds; -1 where something never happened."""

    __slots__ = (
        "admitted_ps",
        "arrival_ps",
        "ask",
        "cached_tokens",
        "end_ps",
        "first_ps",
        "held_row_ps",
        "held_rows",
        "held_since_ps",
        "id",
        "joined_step",
        "longest_pause_ps",
        "moves",
        "outcome",
        "output_tokens",
        "path",
        "paused_ps",
        "paused_since_ps",
        "pauses",
        "produced",
        "prompt_tokens",
        "reason",
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
        self.cached_tokens = 0
        self.moves = 0
        self.pauses = 0
        self.paused_ps = 0
        self.longest_pause_ps = 0
        self.paused_since_ps = -1
        self.path = ""  # sessions held in turn, like 4>1
        self.held_rows = 0
        self.held_since_ps = 0
        self.held_row_ps = 0
        self.joined_step = 0
        self.stop_step = -1

    def hold(self, num_rows: int, now_ps: int) -> None:
        """Occupy `num_rows` from now on, and count what was occupied until now."""
        self.held_row_ps += self.held_rows * (now_ps - self.held_since_ps)
        self.held_rows, self.held_since_ps = num_rows, now_ps

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
        self.hold(self.held_rows, self.end_ps)
        self.outcome, self.reason, self.truncated = op.outcome, op.reason, op.truncated
        if self.paused_since_ps >= 0:
            self.paused_ps += now_ps - self.paused_since_ps
            self.paused_since_ps = -1


class RoundTable:
    """Runs of equal rounds, a tuple each: one answer of the scheduler, not one repeated step.

    `index` of the first round, `begin_ps`, `end_ps`, the number of `rounds`, decoders (`width`),
    `used_rows` of these as it began, `last_ps` the duration of its last round (the longest, since
    rows only grow), `grants_ps` prefill.
    """

    NAMES = ("index", "begin_ps", "end_ps", "rounds", "width", "used_rows", "last_ps", "grants_ps")

    __slots__ = ("_columns", "add", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.add = self.rows.append
        self._columns: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end_ps(self) -> int:
        """When the last round ended."""
        return self.rows[-1][2] if self.rows else 0

    def columns(self) -> dict[str, np.ndarray]:
        """Return every column by name: whole numbers, or floats where these pass 63 bits."""
        if not self._columns or len(self._columns["index"]) != len(self.rows):
            try:
                table = np.fromiter(
                    chain.from_iterable(self.rows), np.int64, len(self.rows) * len(self.NAMES)
                )
            except OverflowError:
                table = np.array(self.rows, dtype=np.float64)
            columns = table.reshape(-1, len(self.NAMES)).T
            self._columns = dict(zip(self.NAMES, columns, strict=True))
        return self._columns
