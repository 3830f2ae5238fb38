"""The arena: everything that sessions remember, allocated once, at exactly the predicted bytes.

A full-attention layer has one buffer `[G, rows, D]` for keys and one for values; a session is a
range of its rows. A sliding-window layer has the same with a ring per slot. A gated-delta layer
keeps an fp32 state and a convolution tail per slot. Rows of a released session are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from qwisp.engine.cache.buffers import Recurrent, Ring, Rows
from qwisp.engine.spec.decoder_spec import DecoderSpec
from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.scheduling.contract import Place
from qwisp.spec.layers import GatedDelta, SlidingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPlan:
    """Rows of the shared buffers, and the most rows a stream in each slot can have."""

    num_rows: int
    slot_rows: tuple[int, ...]
    chunk_tokens: int

    @classmethod
    def of_sessions(cls, session_rows: Sequence[int], chunk_tokens: int) -> ArenaPlan:
        """Return the plan of fixed cuts: a slot per session, its rows one after another."""
        rows = tuple(session_rows)
        return cls(num_rows=sum(rows), slot_rows=rows, chunk_tokens=chunk_tokens)

    def ring_rows(self, window_tokens: int) -> tuple[int, ...]:
        """Return the rows of each slot's ring: min(session rows, window + C)."""
        return tuple(min(rows, window_tokens + self.chunk_tokens) for rows in self.slot_rows)


class Arena:
    """The buffers, each once, and `by_block` for each block; see the module text."""

    def __init__(self, spec: DecoderSpec, plan: ArenaPlan, dtype: str) -> None:
        self.plan = plan
        self.buffers: list[Rows | Ring | Recurrent] = []
        self.by_block: list[Rows | Ring | Recurrent] = []
        for block in spec.blocks:
            if block.source is not None:
                self.by_block.append(self.by_block[block.source])
                continue
            layer = block.layer
            if isinstance(layer, GatedDelta):
                made = Recurrent(layer, len(plan.slot_rows), mlx_dtype(dtype))
            elif isinstance(layer, SlidingWindow):
                made = Ring(layer, plan.ring_rows(layer.window_tokens), mlx_dtype(dtype))
            else:
                made = Rows(layer, plan.num_rows, mlx_dtype(dtype))
            self.buffers.append(made)
            self.by_block.append(made)
        mx.eval(self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """Every buffer."""
        return [array for buffer in self.buffers for array in buffer.arrays]

    def bytes_by_class(self) -> dict[str, int]:
        """Return allocated bytes of `full`, `sliding` and `state` layers."""
        total = {"full": 0, "sliding": 0, "state": 0}
        for buffer in self.buffers:
            total[buffer.layer_class] += sum(array.nbytes for array in buffer.arrays)
        return total

    def open(self, place: Place) -> None:
        """Make a place ready for a new stream: its recurrent state is zero."""
        for buffer in self.buffers:
            buffer.open(place)

    def move(self, source: Place, target: Place, num_rows: int, *, raw_rings: bool = True) -> None:
        """Copy a stream's `num_rows` tokens, rings and state; bits stay as they are.

        Through a temporary of at most 1,024 rows of one layer, evaluated before the next begins:
        a copy within one expression would keep the old arena alive beside the new one.
        """
        for buffer in self.buffers:
            buffer.move(source, target, num_rows, raw=raw_rings)
            mx.eval(buffer.arrays)

    def poison(self, place: Place, first_row: int = 0) -> None:
        """Fill what nobody may read with NaN: a released place, or its rows from `first_row` on."""
        for buffer in self.buffers:
            buffer.poison(place, first_row)
        mx.eval(self.arrays)
