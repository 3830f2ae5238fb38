"""The host build behind the engine's own calls, so that a CPU runs the path a GPU runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import Ring, Rows
from qwisp.engine.model.step import Step

from . import host


class HostKernels:
    """Stands in for `OwnKernels`: the same bodies, run by the host."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.calls = 0
        self.longest_walk = 0

    def sdpa_rows(
        self, q: mx.array, cache: Rows | Ring, step: Step, window: int | None
    ) -> mx.array:
        self.calls += 1
        ranges = [cache.keys(lane.place, lane.position + 1) for lane in step.lanes]
        idle = [0] * (step.width - len(ranges))
        rings = [
            cache.ring_rows[lane.place.slot] if isinstance(cache, Ring) else 1
            for lane in step.lanes
        ]
        k, v = (np.array(x.astype(mx.float32)) for x in (cache.k, cache.v))
        out = host.sdpa_rows(
            self.library,
            np.array(q),
            k,
            v,
            np.array([keys.base for keys in ranges] + idle),
            np.array([keys.count for keys in ranges] + idle),
            position=np.array([lane.position for lane in step.lanes] + idle),
            ring=np.array(rings + [1] * len(idle)),
            window=window or 0,
        )
        return mx.array(out)

    def gated_delta_step(
        self, inputs: Sequence[mx.array], num_live: int
    ) -> tuple[mx.array, mx.array]:
        self.calls += 1
        self.longest_walk = max(self.longest_walk, inputs[0].shape[1])
        live = np.arange(inputs[-1].shape[0]) < num_live
        y, new = host.gated_delta_step(self.library, *map(np.array, inputs), live=live)
        return mx.array(y), mx.array(new)
