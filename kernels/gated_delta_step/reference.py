"""gated_delta_step, the definition: one token of every row's recurrence, in fp32.

Every float operation is one fp32 operation, in the order written; nothing is contracted.
"""

from __future__ import annotations

import numpy as np

LANES = 32
f32 = np.float32


def lane_sum(x: np.ndarray) -> np.ndarray:
    """Return the sum over a last axis of `Dk`: a lane's own elements in order, then a butterfly.

    Lane t owns elements t, t + 32, ...; the exchange is with lane ^ 16, 8, 4, 2, 1.
    """
    own = np.zeros((*x.shape[:-1], LANES), f32)
    for i in range(0, x.shape[-1], LANES):
        own = own + x[..., i : i + LANES]
    for distance in (16, 8, 4, 2, 1):
        own = own + own[..., np.arange(LANES) ^ distance]
    return own[..., 0]


def gated_delta_step(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs `[W, Hv, Dv]` and the new state `[W, Hv, Dv, Dk]`; `Dk` is a multiple of 32.

    q and k are `[W, Hv, Dk]`, v `[W, Hv, Dv]`, decay and beta `[W, Hv]`. `S' = decay S`,
    `d = beta (v - S' k)`, `S = S' + d k^T`, `y = S q`.
    """
    state = state * decay[..., None, None]
    key = k[..., None, :]
    delta = (v - lane_sum(state * key)) * beta[..., None]
    state = state + delta[..., None] * key
    return lane_sum(state * q[..., None, :]), state
