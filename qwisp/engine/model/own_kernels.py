"""Own kernels on a GPU: attention over all lanes in two dispatches, and the gated-delta step.

The same bodies run on the host in tests, where they equal their numpy definitions bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from qwisp.engine.cache.buffers import BLOCK, Ring, Rows
from qwisp.engine.model.kernels import kernel_text
from qwisp.engine.model.step import Step
from qwisp.errors import NotInstalled

LANES = 32
_GROUP = {
    "cuda": "const int group = blockIdx.x;\n",
    "metal": "const int group = threadgroup_position_in_grid.x;\n",
}


class OwnKernels:
    """The kernels of one backend, compiled by MLX at their first use.

    Raises `NotInstalled` where MLX has no GPU that takes them.
    """

    def __init__(self, backend: str | None = None) -> None:
        backend = backend or gpu_backend()
        if backend is None:
            raise NotInstalled("MLX has no GPU here", "run the blocked path, as on any CPU")
        self.backend = backend
        rows = ["q", "k", "v", "base", "length", "position", "ring", "sizes"]
        self._partials = self._made("sdpa_rows/partials.h", rows, ["m", "l", "o"])
        names = ["m", "l", "o", "length", "sizes"]
        self._combine = self._made("sdpa_rows/combine.h", names, ["out"])
        names = ["q", "k", "v", "decay", "beta", "state", "live", "steps"]
        self._delta = self._made("gated_delta_step/step.h", names, ["y", "next"])

    def sdpa_rows(
        self, q: mx.array, cache: Rows | Ring, step: Step, window: int | None
    ) -> mx.array:
        """Return `[W, H, D]` in fp32 for scaled queries q `[W, H, D]`; idle rows are zeros.

        `window` is None for full attention.
        """
        width, heads, dim = q.shape
        ranges = [cache.keys(lane.place, lane.position + 1) for lane in step.lanes]
        idle = [0] * (width - len(ranges))
        rings = [
            cache.ring_rows[lane.place.slot] if isinstance(cache, Ring) else 1
            for lane in step.lanes
        ]
        base = mx.array([keys.base for keys in ranges] + idle, mx.int64)
        length = mx.array([keys.count for keys in ranges] + idle, mx.int32)
        position = mx.array([lane.position for lane in step.lanes] + idle, mx.int32)
        ring = mx.array(rings + [1] * len(idle), mx.int32)
        slots = -(-max(keys.count for keys in ranges) // BLOCK)
        # Eight numbers: MLX hands smaller arrays to a Metal kernel in another address space.
        sizes = mx.array([heads, *cache.k.shape[:2], slots, window or 0, 0, 0, 0], mx.int32)
        m, l, o = self._run(  # noqa: E741  the letters of the formula
            self._partials,
            [q, cache.k, cache.v, base, length, position, ring, sizes],
            width * heads * slots,
            [(width, heads, slots), (width, heads, slots), (width, heads, slots, dim)],
            [("T", cache.k.dtype), ("D", dim)],
        )
        out = self._run(
            self._combine,
            [m, l, o, length, sizes],
            width * heads,
            [(width, heads, dim)],
            [("D", dim)],
        )
        return out[0]

    def gated_delta_step(
        self, inputs: Sequence[mx.array], num_live: int
    ) -> tuple[mx.array, mx.array]:
        """Return `[W, T, Hv, Dv]` and the new state; idle rows of both are undefined.

        `inputs` are q, k, v, decay, beta `[W, T, Hv, ...]` and the state `[W, Hv, Dv, Dk]`.
        """
        state = inputs[-1]
        width, heads, value, key = state.shape
        count = inputs[0].shape[1]
        steps = mx.array([count] + [0] * 7, mx.int32)
        live = mx.array([int(row < num_live) for row in range(width)] + [0] * 8, mx.int32)
        y, new = self._run(
            self._delta,
            [*inputs, live, steps],
            width * heads * value,
            [(width, count, heads, value), state.shape],
            [("HV", heads), ("DV", value), ("DK", key)],
        )
        return y, new

    def _made(self, body: str, inputs: list[str], outputs: list[str]) -> Any:
        header = kernel_text(f"prelude/{self.backend}.h") + kernel_text("sdpa_rows/body.h")
        make = mx.fast.cuda_kernel if self.backend == "cuda" else mx.fast.metal_kernel
        name = body.removesuffix(".h").replace("/", "_")
        return make(
            name=name,
            input_names=inputs,
            output_names=outputs,
            source=_GROUP[self.backend] + kernel_text(body),
            header=header,
        )

    @staticmethod
    def _run(
        kernel: Any,
        inputs: Sequence[mx.array],
        groups: int,
        shapes: Sequence[tuple[int, ...]],
        template: list[tuple[str, Any]],
    ) -> list[mx.array]:
        return kernel(
            inputs=list(inputs),
            template=template,
            grid=(groups * LANES, 1, 1),
            threadgroup=(LANES, 1, 1),
            output_shapes=list(shapes),
            output_dtypes=[mx.float32] * len(shapes),
        )


def gpu_backend() -> str | None:
    """Return `cuda`, `metal` or None: what MLX runs on here."""
    if mx.default_device() == mx.Device(mx.cpu):
        return None
    return "metal" if mx.metal.is_available() else "cuda"
