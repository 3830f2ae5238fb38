"""Ways not to hold the same rows twice, each run against the frozen kernel and compared by bits.

Every function returns a `Trial`. The frozen kernel is `kernels/sdpa_rows/reference.py` as it is.
"""

from __future__ import annotations

import importlib.util
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

import qwisp

from .aliasing import LaneBuffer, Shape, why_not

_PACKAGE = Path(qwisp.__file__).resolve().parent
_INSTALLED = _PACKAGE / "_kernels"
KERNELS = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "kernels"
f32 = np.float32


def reference(name: str) -> ModuleType:
    """Return a kernel's numpy definition."""
    spec = importlib.util.spec_from_file_location(f"{name}_reference", _path(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _path(name: str) -> Path:
    return KERNELS / name / "reference.py"


def kernel_hash(name: str = "sdpa_rows") -> str:
    """Return the hash of a kernel's definition: what "untouched" refers to."""
    return sha256(_path(name).read_bytes()).hexdigest()[:16]


SDPA = reference("sdpa_rows")
DELTA = reference("gated_delta_step")


class Trial(NamedTuple):
    """What a mechanism did: changed units out of `of`, whether another kernel ran, bytes saved."""

    changed: int
    of: int
    kernel_changed: bool
    bytes_saved: int
    note: str


class Case(NamedTuple):
    """Lanes that share the first rows of their keys and values; fp16 rows, fp32 queries."""

    shape: Shape
    q: np.ndarray  # [B, H, D]
    shared: tuple[np.ndarray, np.ndarray]  # keys, values [G, shared, D]
    own: tuple[np.ndarray, np.ndarray]  # keys, values [G, B, own, D]

    @property
    def own_rows(self) -> int:
        return self.own[0].shape[2]

    @property
    def length(self) -> np.ndarray:
        return np.full(self.shape.lanes, self.shape.shared + self.own_rows)

    @property
    def base(self) -> np.ndarray:
        return np.arange(self.shape.lanes) * self.shape.rows

    @property
    def duplicated_bytes(self) -> int:
        """Keys and values of all copies but one."""
        shape = self.shape
        return 2 * (shape.lanes - 1) * shape.groups * shape.shared * shape.row_bytes

    def lane(self, lane: int) -> list[np.ndarray]:
        """Return one lane's keys and values, `[G, length, D]`."""
        pairs = zip(self.shared, self.own, strict=True)
        return [np.concatenate([first, own[:, lane]], axis=1) for first, own in pairs]


def make_case(shape: Shape, *, heads: int, own_rows: int, rng: np.random.Generator) -> Case:
    """Return a random case; queries are scaled by 1 / sqrt(D)."""

    def rows(*sizes: int) -> np.ndarray:
        return rng.standard_normal((shape.groups, *sizes, shape.dim)).astype(shape.dtype)

    q = rng.standard_normal((shape.lanes, heads, shape.dim)) / np.sqrt(shape.dim)
    shared = rows(shape.shared), rows(shape.shared)
    own = rows(shape.lanes, own_rows), rows(shape.lanes, own_rows)
    return Case(shape, q.astype(f32), shared, own)


def frozen(case: Case, *, aliases: bool) -> tuple[np.ndarray, int]:
    """Return (the frozen kernel's output, PSS of keys and values); `aliases` maps shared pages.

    Where nothing can be aliased, PSS is not read and is 0.
    """
    shape, total = case.shape, 0
    with LaneBuffer(shape, aliases=aliases) as k, LaneBuffer(shape, aliases=aliases) as v:
        for buffer, shared, own in zip((k, v), case.shared, case.own, strict=True):
            buffer.write_shared(shared)
            for lane in range(shape.lanes):
                start = buffer.base(lane) + shape.shared
                buffer.array[:, start : buffer.base(lane) + shape.rows] = 0
                buffer.array[:, start : start + case.own_rows] = own[:, lane]
            buffer.touch()
            total += 0 if why_not() else buffer.pss_bytes()
        out = SDPA.sdpa_rows(case.q, k.array, v.array, case.base, case.length)
    return out, total


def aliased(case: Case, expected: np.ndarray, private_bytes: int) -> Trial:
    """The frozen kernel over ranges whose shared pages exist once."""
    out, pss_bytes = frozen(case, aliases=True)
    shape = case.shape
    note = (
        f"granule {shape.granule_bytes} bytes = {shape.granule.rows} rows; whole granules hold "
        f"{shape.mapped_bytes} of {shape.shared * shape.row_bytes} bytes of a region"
    )
    return _trial(out, expected, False, private_bytes - pss_bytes, note)


def paged(case: Case, expected: np.ndarray, *, page_rows: int, rng: np.random.Generator) -> Trial:
    """Rows in pages all over a pool, shared pages once: a kernel that follows a page table."""
    k, v, tables = _pool(case, page_rows, rng)
    out = np.zeros_like(expected)
    for lane, table in enumerate(tables):
        rows = (table[:, None] * page_rows + np.arange(page_rows)).reshape(-1)
        _attend(case, out, lane, k[:, rows[: case.length[lane]]], v[:, rows[: case.length[lane]]])
    first = np.array([table[0] * page_rows for table in tables])
    room = k.shape[1] - first
    blind = SDPA.sdpa_rows(case.q, k, v, first, np.minimum(case.length, room))
    wrong = _num_changed(blind, expected)
    note = f"the frozen kernel, given a first page and a length, is wrong in {wrong} rows"
    whole = case.shape.shared // page_rows * page_rows
    bytes_saved = 2 * (case.shape.lanes - 1) * case.shape.groups * whole * case.shape.row_bytes
    return _trial(out, expected, True, bytes_saved, note)


def _pool(
    case: Case, page_rows: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return keys, values and a table of pages per lane; pages lie in random order."""
    shape = case.shape
    common = shape.shared // page_rows
    own = -(-int(case.length[0]) // page_rows) - common
    order = rng.permutation(common + own * shape.lanes)
    size = (shape.groups, order.size * page_rows, shape.dim)
    pools = [np.zeros(size, shape.dtype) for _ in ("keys", "values")]
    tables = []
    for lane in range(shape.lanes):
        start = common + own * lane
        table = np.concatenate([order[:common], order[start : start + own]])
        rows = (table[:, None] * page_rows + np.arange(page_rows)).reshape(-1)
        for pool, mine in zip(pools, case.lane(lane), strict=True):
            pool[:, rows[: mine.shape[1]]] = mine
        tables.append(table)
    return pools[0], pools[1], tables


def two_bases(case: Case, expected: np.ndarray) -> Trial:
    """Blocks in the same order, read from the shared base and then from the lane's own."""
    out = np.zeros_like(expected)
    for lane in range(case.shape.lanes):
        _attend(case, out, lane, *case.lane(lane))
    note = "a block that straddles both bases is gathered from both; order as before"
    return _trial(out, expected, True, case.duplicated_bytes, note)


def split_softmax(case: Case, expected: np.ndarray) -> Trial:
    """Attention over the shared and over the own rows, merged by their log-sum-exp."""
    out = np.zeros_like(expected)
    for lane in range(case.shape.lanes):
        k, v = case.lane(lane)
        for head in range(case.q.shape[1]):
            group = head // (case.q.shape[1] // case.shape.groups)
            parts = [
                _with_lse(case.q[lane, head], k[group, rows], v[group, rows])
                for rows in (slice(0, case.shape.shared), slice(case.shape.shared, None))
            ]
            top = max(lse for _, lse in parts)
            weights = [SDPA.exp(np.array(lse - top)) for _, lse in parts]
            total = sum(w * part for w, (part, _) in zip(weights, parts, strict=True))
            out[lane, head] = total / sum(weights)
    elements = int((out.view(np.uint32) != expected.view(np.uint32)).sum())
    error = float(np.max(np.abs(out - expected)))
    note = f"{elements} of {out.size} elements have other bits; largest difference {error:.2g}"
    return _trial(out, expected, True, case.duplicated_bytes, note)


def _with_lse(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Return one part's own result and its log-sum-exp, as a split kernel hands them on."""
    seen = np.ones(k.shape[0], bool)
    scores = k.astype(f32) @ q
    top = scores.max()
    lse = f32(top + np.log(SDPA.exp(scores - top).sum(dtype=f32)))
    return SDPA.attend(q, k, v, seen), lse


def rewound_state(*, dim: int, steps: int, rng: np.random.Generator) -> Trial:
    """A recurrent state walked `steps` tokens on, then back by the exact inverse in fp64.

    `S' = decay S (I - beta k k^T) + beta v k^T`, and `(I - beta k k^T)^-1 = I + beta / (1 - beta)
    k k^T` for a key of length 1.
    """
    state = rng.standard_normal((1, 1, dim, dim)).astype(f32)
    start, tokens = state, []
    for _ in range(steps):
        k, v = rng.standard_normal((2, 1, 1, dim)).astype(f32)
        k /= np.linalg.norm(k)
        decay, beta = rng.uniform((0.8, 0.1), (1.0, 0.9)).astype(f32).reshape(2, 1, 1)
        _, state = DELTA.gated_delta_step(k, k, v, decay, beta, state)
        tokens.append((k, v, decay, beta))
    back = state.astype(np.float64)[0, 0]
    for k, v, decay, beta in reversed(tokens):
        key, b = k[0, 0].astype(np.float64), float(beta[0, 0])
        key = key / np.linalg.norm(key)
        back = back - b * np.outer(v[0, 0], key)
        back = (back + b / (1 - b) * np.outer(back @ key, key)) / float(decay[0, 0])
    changed = int((back.astype(f32).view(np.uint32) != start[0, 0].view(np.uint32)).sum())
    error = float(np.max(np.abs(back - start[0, 0])))
    note = f"{steps} tokens on and back in fp64; largest difference {error:.2g}"
    return Trial(changed, dim * dim, False, 0, note)


def _attend(case: Case, out: np.ndarray, lane: int, k: np.ndarray, v: np.ndarray) -> None:
    heads = case.q.shape[1]
    seen = np.ones(k.shape[1], bool)
    for head in range(heads):
        group = head // (heads // case.shape.groups)
        out[lane, head] = SDPA.attend(case.q[lane, head], k[group], v[group], seen)


def _trial(
    out: np.ndarray, expected: np.ndarray, kernel_changed: bool, bytes_saved: int, note: str
) -> Trial:
    rows = expected.shape[0] * expected.shape[1]
    return Trial(_num_changed(out, expected), rows, kernel_changed, bytes_saved, note)


def _num_changed(out: np.ndarray, expected: np.ndarray) -> int:
    """Return the rows (lane, head) with other bits; a NaN equals itself here."""
    return int((out.view(np.uint32) != expected.view(np.uint32)).any(axis=-1).sum())
