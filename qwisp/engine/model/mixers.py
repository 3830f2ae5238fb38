"""Attention blocks: full or sliding window, with or without gate, query-key norm, partial rope."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from qwisp.engine.cache.buffers import BLOCK, KeyRange, Ring, Rows
from qwisp.engine.model.attention import decode_lane, prefill_window
from qwisp.engine.model.linear import Norm, Weights, linear
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.rope import Rotation
from qwisp.engine.model.step import Context, Lane, Step, Window
from qwisp.engine.spec.decoder_spec import Block, DecoderSpec
from qwisp.spec.layers import SlidingWindow


class Attention:
    """One attention block; `decode` and `prefill` return `[M, hidden]` for x `[M, hidden]`."""

    def __init__(self, spec: DecoderSpec, block: Block, weights: Weights, name: str) -> None:
        rule, layer = block.attention, block.layer
        assert rule is not None
        self.name = name
        self.rule = rule
        self.head_dim = layer.k_dim
        self.kv_heads = layer.kv_heads
        self.window = layer.window_tokens if isinstance(layer, SlidingWindow) else None
        self.eps = spec.eps
        self.rotate = Rotation(rule.rope)
        hidden = spec.hidden
        self.keeps = block.source is None
        self.q = linear(weights, f"{name}.q_proj", hidden)
        self.o = linear(weights, f"{name}.o_proj", rule.heads * self.head_dim)
        self.k = self.v = self.q_norm = self.k_norm = None
        if rule.has_qk_norm:
            self.q_norm = Norm(weights, f"{name}.q_norm", spec.eps, spec.norm_offset)
        if self.keeps:
            self.k = linear(weights, f"{name}.k_proj", hidden)
            if not rule.keys_are_values:
                self.v = linear(weights, f"{name}.v_proj", hidden)
            if rule.has_qk_norm:
                self.k_norm = Norm(weights, f"{name}.k_norm", spec.eps, spec.norm_offset)

    def decode(self, c: Context, x: mx.array, cache: Rows | Ring, step: Step) -> mx.array:
        """Write each live lane's key and value, then attend over its own rows."""

        def project(x: mx.array, positions: mx.array) -> list[mx.array]:
            q, gate = self._queries(c, x)
            q = self.rotate(q[:, :, None], positions).squeeze(2).astype(mx.float32)
            out = [q * self.rule.scale] + ([] if gate is None else [gate])
            if self.keeps:
                k, v = self._keys_values(c, x)
                out += [self.rotate(k[:, :, None], positions).squeeze(2), v]
            return out

        q, *rest = c.pure(f"{self.name}.project", step, project, x, step.positions)
        c.tap(f"{self.name}.queries", q)
        gates = rest[:1] if self.rule.has_gate else []
        if self.keeps:
            k, v = rest[-2:]
            n, at = step.num_live, [(lane.place, lane.position) for lane in step.lanes]
            rows = [cache.rows_of(place, range(t, t + 1))[0] for place, t in at]
            cache.write(rows, k[:n].swapaxes(0, 1), v[:n].swapaxes(0, 1))
        if c.kernels is not None and c.guards.blocked_attention:
            out = c.kernels.sdpa_rows(q, cache, step, self.window)
        elif c.guards.blocked_attention:
            outs = [self._lane(c, q[i], cache, lane) for i, lane in enumerate(step.lanes)]
            out = step.fill(outs)
        else:
            out = step.fill(stock_decode(c.ops, q, cache, step, self._readable))

        def output(out: mx.array, *gates: mx.array) -> mx.array:
            return self._output(c, out, gates[0] if gates else None, x.dtype)

        return c.pure(f"{self.name}.output", step, output, out.reshape(step.width, -1), *gates)

    def prefill(self, c: Context, x: mx.array, cache: Rows | Ring, window: Window) -> mx.array:
        """Write the present rows, then attend from every row of the window."""
        q, gate = self._queries(c, x)
        q = self.rotate(q.swapaxes(0, 1)[None], window.origin)[0]
        if self.keeps:
            k, v = self._keys_values(c, x)
            k = self.rotate(k.swapaxes(0, 1)[None], window.origin)[0]
            rows = cache.rows_of(window.place, range(window.first, window.end))
            cache.write(rows, k[:, window.rows], v.swapaxes(0, 1)[:, window.rows])
        q = q.astype(mx.float32) * self.rule.scale
        c.tap(f"{self.name}.queries", q.swapaxes(0, 1))
        keys = cache.keys(window.place, window.end)
        if c.guards.blocked_attention:
            num_blocks = self._num_blocks(cache, window)
            slots = np.arange(num_blocks * BLOCK)
            allowed = self._allowed(cache, window.place.slot, slots, window.queries, window.end)
            out = prefill_window(c.ops, q, keys, num_blocks, allowed)
        else:
            slots = np.arange(keys.count)
            allowed = self._allowed(cache, window.place.slot, slots, window.queries, window.end)
            out = stock_prefill(c.ops, q, keys, allowed)
        return self._output(c, out.swapaxes(0, 1).reshape(window.num_rows, -1), gate, x.dtype)

    def _queries(self, c: Context, x: mx.array) -> tuple[mx.array, mx.array | None]:
        """Return queries `[M, H, D]` and the gate `[M, H D]`."""
        q = self.q(c.ops, x)
        c.tap(f"{self.name}.q_proj", q)
        gate = None
        q = q.reshape(x.shape[0], self.rule.heads, -1)
        if self.rule.has_gate:
            q, gate = mx.split(q, 2, axis=-1)
            gate = gate.reshape(x.shape[0], -1)
        return q if self.q_norm is None else self.q_norm(q), gate

    def _keys_values(self, c: Context, x: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys and values `[M, G, D]`, both before the keys turn."""
        assert self.k is not None
        shape = (x.shape[0], self.kv_heads, self.head_dim)
        k = self.k(c.ops, x)
        c.tap(f"{self.name}.k_proj", k)
        v = k
        if self.v is not None:
            v = self.v(c.ops, x)
            c.tap(f"{self.name}.v_proj", v)
        k, v = k.reshape(shape), v.reshape(shape)
        if self.rule.has_value_norm:
            v = mx.fast.rms_norm(v, None, self.eps)
        return k if self.k_norm is None else self.k_norm(k), v

    def _lane(self, c: Context, q: mx.array, cache: Rows | Ring, lane: Lane) -> mx.array:
        keys = cache.keys(lane.place, lane.position + 1)
        return decode_lane(c.ops, q, keys, self._readable(cache, lane, keys.count))

    def _readable(self, cache: Rows | Ring, lane: Lane, count: int) -> np.ndarray | None:
        """Return which of a lane's `count` rows its token may read, None for all."""
        if self.window is None:
            return None
        queries = np.array([lane.position])
        slots = np.arange(count)
        return self._allowed(cache, lane.place.slot, slots, queries, lane.position + 1)[0]

    def _allowed(
        self, cache: Rows | Ring, slot: int, slots: np.ndarray, queries: np.ndarray, end: int
    ) -> np.ndarray:
        """Return `[queries, slots]`: the slot holds a written position that the query may read."""
        if isinstance(cache, Rows):
            held = np.where(slots < end, slots, end)
        else:
            size = cache.ring_rows[slot]
            held = end - 1 - (end - 1 - slots) % size
            held = np.where((held >= 0) & (slots < size), held, end)
        seen = held[None, :] <= np.minimum(queries, end - 1)[:, None]
        if self.window is not None:
            seen &= held[None, :] > queries[:, None] - self.window
        return seen

    def _num_blocks(self, cache: Rows | Ring, window: Window) -> int:
        """Return the key blocks of a window: by its index alone, whatever the session's size."""
        reach = window.origin + window.num_rows
        if isinstance(cache, Ring) and self.window is not None:
            reach = min(reach, self.window + window.num_rows)
        return -(-reach // BLOCK)

    def _output(
        self, c: Context, out: mx.array, gate: mx.array | None, dtype: mx.Dtype
    ) -> mx.array:
        c.tap(f"{self.name}.attention", out)  # in fp32: a narrower type would hide a difference
        out = out.astype(dtype)
        y = self.o(c.ops, out if gate is None else out * mx.sigmoid(gate))
        c.tap(f"{self.name}.o_proj", y)
        return y


Readable = Callable[[Rows | Ring, Lane, int], np.ndarray | None]


def stock_decode(
    ops: Ops, q: mx.array, cache: Rows | Ring, step: Step, readable: Readable
) -> list[mx.array]:
    """Return `[H, D]` per live lane; q is `[W, H, D]` in fp32, already scaled."""
    ranges = [cache.keys(lane.place, lane.position + 1) for lane in step.lanes]
    longest = max(keys.count for keys in ranges)
    mask = np.zeros((len(ranges), 1, 1, longest), bool)
    for i, (lane, keys) in enumerate(zip(step.lanes, ranges, strict=True)):
        seen = readable(cache, lane, keys.count)
        mask[i, ..., : keys.count] = True if seen is None else seen
    k = mx.stack([_padded(keys.k, keys, longest) for keys in ranges])
    v = mx.stack([_padded(keys.v, keys, longest) for keys in ranges])
    out = ops.attention(q[: len(ranges), :, None], k, v, scale=1.0, mask=mx.array(mask))
    return [out[i, :, 0] for i in range(len(ranges))]


def stock_prefill(ops: Ops, q: mx.array, keys: KeyRange, allowed: np.ndarray) -> mx.array:
    """Return `[H, C, D]` for a window of queries, q `[H, C, D]` in fp32, already scaled."""
    k, v = (_padded(x, keys, keys.count)[None] for x in (keys.k, keys.v))
    return ops.attention(q[None], k, v, scale=1.0, mask=mx.array(allowed))[0]


def _padded(x: mx.array, keys: KeyRange, num_rows: int) -> mx.array:
    rows = x[:, keys.base : keys.base + keys.count].astype(mx.float32)
    return mx.pad(rows, [(0, 0), (0, num_rows - keys.count), (0, 0)])
