"""Rounds built by hand, for what a schedule reaches rarely: one stream at chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qwisp.engine.build import open_engine
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.step import Tap, no_tap
from qwisp.engine.spec.identity import Safeguards
from qwisp.scheduling.contract import (
    Admit,
    Capture,
    End,
    Grant,
    Operation,
    Outcome,
    Place,
    Restore,
    Round,
)
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings

from .runs import CHUNK, model_of


class Hand:
    """An executor over sessions of `rows`, driven operation by operation."""

    def __init__(
        self,
        model: str,
        rows: Sequence[int],
        requests: dict[int, TokenRequest],
        *,
        dtype: str = "float32",
        ops: Ops | None = None,
        safeguards: Safeguards | None = None,
        poisons: bool = False,
        chunk: int = CHUNK,
        tap: Tap = no_tap,
        ahead: int = 0,
    ) -> None:
        self.places = [Place(n, sum(rows[:n]), size, size) for n, size in enumerate(rows)]
        self.script = ScriptedClients(requests, [])
        # At most eight decode at once, whatever the number of sessions: the width stays 8.
        layout = replace(Layout.sessions(*rows), lanes=min(8, len(rows)))
        engine = open_engine(
            model_of(model, dtype),
            layout,
            self.script,
            Settings(chunk_tokens=chunk),
            safeguards=safeguards,
            ops=ops or Ops(),
            tap=tap,
            ahead=ahead,
            keeps_logits=True,
            poisons=poisons,
            is_compiled=False,
            has_kernels=False,
        )
        self.executor = engine.executor
        self.arena = engine.executor.arena
        self.requests = requests
        self.index = 0

    def round(self, *ops: Operation, decode: Sequence[int] = (), steps: int = 1) -> Outcome:
        outcome = self.executor.run(Round(self.index, ops, tuple(decode), steps, False))
        self.index += outcome.rounds
        return outcome

    def start(
        self,
        request_id: int,
        place: int,
        *,
        cuts: Sequence[int] = (),
        restore: tuple[int, int] | None = None,
        capture: tuple[int, int] | None = None,
    ) -> Outcome:
        """Admit and prefill a request; grants end at `cuts`; blobs are (key, tokens)."""
        end = len(self.requests[request_id].prompt) - 1
        ops: list[Operation] = [Admit(request_id, self.places[place], end + 1)]
        begin = 0
        if restore is not None:
            ops.append(Restore(request_id, *restore))
            begin = restore[1]
        for stop in [*cuts, end]:
            if stop > begin:
                ops.append(Grant(request_id, begin, stop - begin, 1, stop == end))
                begin = stop
        if capture is not None:
            ops.append(Capture(request_id, *capture))
        return self.round(*ops)

    def end(self, request_id: int, place: int) -> Outcome:
        return self.round(End(request_id, "finished", "length", self.places[place]))

    def logits(self, request_id: int) -> np.ndarray:
        return np.stack(self.script.replies[request_id].logits)
