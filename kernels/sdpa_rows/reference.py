"""sdpa_rows, the definition: decode attention over lanes that lie in one arena buffer.

Every float operation is one fp32 operation, in the order written; nothing is contracted. A device
build of the same text gives the same bits.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
LANES = 32
f32 = np.float32

LOG2_E = f32(1.44269504088896341)
LN2_HIGH = f32(0.693359375)
LN2_LOW = f32(-2.12194440e-4)
LOWEST = f32(-87.0)
COEFFICIENTS = tuple(
    f32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)


def exp(x: np.ndarray) -> np.ndarray:
    """Return e^x for x <= 0 in fp32: 2^n times a polynomial (Cephes expf); 0 below -87.

    >>> float(exp(np.array([0.0, -200.0], np.float32)).sum())
    1.0
    """
    x = x.astype(f32)
    is_zero = ~(x >= LOWEST)
    x = np.where(is_zero, f32(0), x)
    n = np.rint(x * LOG2_E)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = np.full_like(r, COEFFICIENTS[0])
    for c in COEFFICIENTS[1:]:
        p = p * r
        p = p + c
    y = p * (r * r)
    y = y + r
    y = y + f32(1)
    power = ((n.astype(np.int32) + 127) << 23).view(f32)
    return np.where(is_zero, f32(0), y * power)


def butterfly(x: np.ndarray) -> np.ndarray:
    """Return the sum over a last axis of 32 lanes: exchange with lane ^ 16, 8, 4, 2, 1 and add.

    Every lane ends with the same bits, because an addition does not care which side is whose.
    """
    for distance in (16, 8, 4, 2, 1):
        x = x + x[..., np.arange(LANES) ^ distance]
    return x[..., 0]


def block_partial(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (m, l, o) of one head over one block: q `[D]`, k, v `[256, D]`, allowed `[256]`.

    Lane t owns keys t, t + 32, ..., and later elements t, t + 32, ... of the result.
    """
    s = np.zeros(BLOCK, f32)
    for d in range(q.shape[0]):
        s = s + q[d] * k[:, d]
    s = np.where(allowed, s, f32(-np.inf))
    m = s.max()
    p = exp(s - (f32(0) if m == -np.inf else m))
    own = np.zeros(LANES, f32)
    for i in range(BLOCK // LANES):
        own = own + p[i * LANES : (i + 1) * LANES]
    o = np.zeros(v.shape[1], f32)
    for j in range(BLOCK):
        o = o + p[j] * v[j]
    return m, butterfly(own), o


def sdpa_rows(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    base: np.ndarray,
    length: np.ndarray,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return `[W, H, D]` in fp32: every row attends over rows `[base, base + length)` of k and v.

    q is `[W, H, D]`, already scaled; k and v are buffers `[G, rows, D]`, of which nothing outside a
    row's own range is read. `allowed` `[W, longest]` takes rows of a ring away. Head h reads group
    h // (H / G). A row of length 0 is idle: zeros.
    """
    width, heads, dim = q.shape
    per_group = heads // k.shape[0]
    out = np.zeros((width, heads, dim), f32)
    for w in range(width):
        for h in range(heads if length[w] else 0):
            rows = slice(int(base[w]), int(base[w]) + int(length[w]))
            group = h // per_group
            seen = np.ones(length[w], bool) if allowed is None else allowed[w, : length[w]]
            out[w, h] = attend(q[w, h].astype(f32), k[group, rows], v[group, rows], seen)
    return out


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return `[D]` for one head over its own rows: partials by block, combined from block 0 on."""
    parts = []
    for start in range(0, k.shape[0], BLOCK):
        keys, values = np.zeros((2, BLOCK, k.shape[1]), f32)
        seen = np.zeros(BLOCK, bool)
        n = min(BLOCK, k.shape[0] - start)
        keys[:n], values[:n] = k[start : start + n], v[start : start + n]
        seen[:n] = allowed[start : start + n]
        parts.append(block_partial(q, keys, values, seen))
    top = max(m for m, _, _ in parts)
    total, weight = np.zeros(k.shape[1], f32), f32(0)
    for m, l, o in parts:  # noqa: E741  the letters of the formula
        w = exp(np.array(m - top))
        total = total + w * o
        weight = weight + w * l
    return total / weight
