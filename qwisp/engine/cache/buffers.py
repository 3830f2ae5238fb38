"""The three kinds of buffer in an arena: rows, rings and recurrent state."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from qwisp.scheduling.contract import Place
from qwisp.spec.layers import FullAttention, GatedDelta, SlidingWindow

COPY_ROWS = 1024
"""The largest temporary of a move or restore, in rows of one layer."""

BLOCK = 256
"""Keys that attention sums at a time."""


class KeyRange(NamedTuple):
    """Rows `[base, base + count)` of buffers `[G, rows, D]` that a lane may read."""

    k: mx.array
    v: mx.array
    base: int
    count: int

    def blocks(self, first: int, num_blocks: int) -> tuple[mx.array, mx.array]:
        """Return blocks `[G, num_blocks, 256, D]` of keys and values in fp32, zeros past `count`.

        Rows past `count` are somebody else's, or nobody's: they are not read at all, because zero
        times NaN is NaN.
        """
        begin = self.base + first * BLOCK
        end = min(begin + num_blocks * BLOCK, self.base + self.count)
        return tuple(_blocked(x, begin, max(begin, end), num_blocks) for x in (self.k, self.v))


def _blocked(x: mx.array, begin: int, end: int, num_blocks: int) -> mx.array:
    rows = x[:, begin:end].astype(mx.float32)
    missing = num_blocks * BLOCK - (end - begin)
    if missing:
        rows = mx.pad(rows, [(0, 0), (0, missing), (0, 0)])
    return rows.reshape(x.shape[0], num_blocks, BLOCK, x.shape[-1])


class KvCopy(NamedTuple):
    """Rows taken out of the arena, `[G, n, D]`, in the order they lie there."""

    k: mx.array
    v: mx.array


class StateCopy(NamedTuple):
    """One slot's recurrent state and convolution tail."""

    state: mx.array
    conv: mx.array


def _copied(x: mx.array) -> mx.array:
    """Return the same bits in memory of their own; adding 0 as integers keeps even a -0.0."""
    words = mx.uint32 if x.dtype.size == 4 else mx.uint16
    out = (x.view(words) + mx.array(0, words)).view(x.dtype)
    mx.eval(out)
    return out


class _Kv:
    """Keys and values `[G, rows, D]`."""

    layer_class = ""

    def __init__(self, layer: FullAttention | SlidingWindow, rows: int, dtype: mx.Dtype) -> None:
        self.k = mx.zeros((layer.kv_heads, rows, layer.k_dim), dtype)
        self.v = mx.zeros((layer.kv_heads, rows, layer.v_dim), dtype)

    @property
    def arrays(self) -> list[mx.array]:
        """The two buffers."""
        return [self.k, self.v]

    def write(self, rows: list[int], k: mx.array, v: mx.array) -> None:
        """Write k and v, `[G, n, D]`, to any n rows."""
        first, n = rows[0], len(rows)
        if rows == list(range(first, first + n)):
            self.k[:, first : first + n] = k
            self.v[:, first : first + n] = v
            return
        index = mx.array(rows, mx.int64)
        self.k[:, index] = k
        self.v[:, index] = v

    def copy(self, source: int, target: int, num_rows: int) -> None:
        """Copy rows through a bounded temporary, in the order that overlapping ranges need."""
        starts = list(range(0, num_rows, COPY_ROWS))
        for start in starts if target <= source else reversed(starts):
            n = min(COPY_ROWS, num_rows - start)
            for name in ("k", "v"):
                buffer = getattr(self, name)
                piece = _copied(buffer[:, source + start : source + start + n])
                buffer[:, target + start : target + start + n] = piece
                mx.eval(buffer)

    def take(self, base: int, num_rows: int) -> KvCopy:
        """Return copies of `num_rows` rows."""
        return KvCopy(*(_copied(x[:, base : base + num_rows]) for x in self.arrays))

    def put(self, base: int, copy: KvCopy) -> None:
        """Write rows taken earlier."""
        n = copy.k.shape[1]
        if n:
            self.k[:, base : base + n] = copy.k
            self.v[:, base : base + n] = copy.v
            mx.eval(self.arrays)

    def fill(self, base: int, num_rows: int, value: float) -> None:
        """Set rows to one value."""
        for x in self.arrays:
            x[:, base : base + num_rows] = value


class Rows(_Kv):
    """Full attention: token t of a stream in `place` lies in row `place.start_row + t`."""

    layer_class = "full"

    def rows_of(self, place: Place, positions: range) -> list[int]:
        """Return the rows of those positions."""
        return [place.start_row + t for t in positions]

    def keys(self, place: Place, num_tokens: int) -> KeyRange:
        """Return what a stream of `num_tokens` may read."""
        return KeyRange(self.k, self.v, place.start_row, num_tokens)

    def open(self, place: Place) -> None:
        """Nothing to do: a new stream never reads rows it has not written."""
        del place

    def move(self, source: Place, target: Place, num_rows: int, *, raw: bool) -> None:
        """Copy `num_rows` rows; the ranges may overlap."""
        del raw
        self.copy(source.start_row, target.start_row, num_rows)

    def save(self, place: Place, num_tokens: int) -> KvCopy:
        """Return a copy of the first `num_tokens` rows."""
        return self.take(place.start_row, num_tokens)

    def load(self, place: Place, saved: KvCopy) -> None:
        """Write what `save` returned."""
        self.put(place.start_row, saved)

    def poison(self, place: Place, first_row: int) -> None:
        """Fill what nobody may read with NaN."""
        self.fill(place.start_row + first_row, place.num_rows - first_row, float("nan"))


class Ring(_Kv):
    """Sliding window: position p lies in row `offset[slot] + p mod R[slot]`."""

    layer_class = "sliding"

    def __init__(self, layer: SlidingWindow, ring_rows: tuple[int, ...], dtype: mx.Dtype) -> None:
        super().__init__(layer, sum(ring_rows), dtype)
        self.ring_rows = ring_rows
        self.offsets = tuple(sum(ring_rows[:slot]) for slot in range(len(ring_rows)))
        self.window_tokens = layer.window_tokens

    def rows_of(self, place: Place, positions: range) -> list[int]:
        """Return the rows of those positions."""
        base, size = self.offsets[place.slot], self.ring_rows[place.slot]
        return [base + t % size for t in positions]

    def keys(self, place: Place, num_tokens: int) -> KeyRange:
        """Return what a stream of `num_tokens` may read: its ring as far as it was written."""
        used = min(self.ring_rows[place.slot], num_tokens)
        return KeyRange(self.k, self.v, self.offsets[place.slot], used)

    def open(self, place: Place) -> None:
        """Nothing to do: a new stream never reads rows it has not written."""
        del place

    def move(self, source: Place, target: Place, num_rows: int, *, raw: bool) -> None:
        """Copy the ring raw: one that has not wrapped fits any larger one, wrapped ones are equal.

        `raw=False` re-linearises (a safeguard taken away): the oldest position first.
        """
        if source.slot == target.slot:
            return
        size = self.ring_rows[source.slot]
        used = min(size, num_rows)
        base = self.offsets[source.slot]
        if raw or num_rows <= size:
            self.copy(base, self.offsets[target.slot], used)
            return
        turn = num_rows % size
        saved = self.take(base, used)
        turned = KvCopy(*(mx.concatenate([x[:, turn:], x[:, :turn]], axis=1) for x in saved))
        self.put(self.offsets[target.slot], turned)

    def save(self, place: Place, num_tokens: int) -> KvCopy:
        """Return a copy of the ring as far as `num_tokens` wrote it, in ring order."""
        used = min(self.ring_rows[place.slot], num_tokens)
        return self.take(self.offsets[place.slot], used)

    def load(self, place: Place, saved: KvCopy) -> None:
        """Write what `save` returned."""
        self.put(self.offsets[place.slot], saved)

    def poison(self, place: Place, first_row: int) -> None:
        """Fill what nobody may read with NaN."""
        size = self.ring_rows[place.slot]
        first = min(first_row, size)
        self.fill(self.offsets[place.slot] + first, size - first, float("nan"))


class Recurrent:
    """Gated delta: state `[slots, Hv, Dv, Dk]` in fp32, conv tail `[slots, kernel - 1, conv]`."""

    layer_class = "state"

    def __init__(self, layer: GatedDelta, slots: int, dtype: mx.Dtype) -> None:
        shape = (slots, layer.value_heads, layer.value_dim, layer.key_dim)
        self.state = mx.zeros(shape, mx.float32)
        self.conv = mx.zeros((slots, layer.conv_kernel - 1, layer.conv_dim), dtype)

    @property
    def arrays(self) -> list[mx.array]:
        """The two buffers."""
        return [self.state, self.conv]

    def read(self, slots: list[int]) -> tuple[mx.array, mx.array]:
        """Return state and tail of those slots, `[n, ...]`."""
        index = mx.array(slots, mx.int64)
        return self.state[index], self.conv[index]

    def write(self, slots: list[int], state: mx.array, conv: mx.array) -> None:
        """Store state and tail of distinct slots."""
        index = mx.array(slots, mx.int64)
        self.state[index] = state
        self.conv[index] = conv

    def open(self, place: Place) -> None:
        """Zero the slot: a stream starts from nothing."""
        self._fill(place.slot, 0.0)

    def move(self, source: Place, target: Place, num_rows: int, *, raw: bool) -> None:
        """Copy the slot."""
        del num_rows, raw
        if source.slot != target.slot:
            self.load(target, self.save(source, 0))

    def save(self, place: Place, num_tokens: int) -> StateCopy:
        """Return a copy of the slot."""
        del num_tokens
        slot = slice(place.slot, place.slot + 1)
        return StateCopy(_copied(self.state[slot]), _copied(self.conv[slot]))

    def load(self, place: Place, saved: StateCopy) -> None:
        """Write what `save` returned."""
        self.state[place.slot : place.slot + 1] = saved.state
        self.conv[place.slot : place.slot + 1] = saved.conv
        mx.eval(self.arrays)

    def poison(self, place: Place, first_row: int) -> None:
        """Fill what nobody may read with NaN."""
        if first_row == 0:  # state belongs to a stream, not to a row
            self._fill(place.slot, float("nan"))

    def _fill(self, slot: int, value: float) -> None:
        for x in self.arrays:
            x[slot : slot + 1] = value
