"""Gated delta blocks: a short convolution, then a recurrence that prefill walks token by token."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from qwisp.engine.cache.buffers import Recurrent
from qwisp.engine.model.linear import Norm, Weights, linear
from qwisp.engine.model.step import Context, Step, Window
from qwisp.engine.spec.decoder_spec import Block, DecoderSpec
from qwisp.spec.layers import GatedDelta

L2_EPS = 1e-6


class GatedDeltaBlock:
    """One block; `decode` and `prefill` return `[M, hidden]` for x `[M, hidden]`."""

    def __init__(self, spec: DecoderSpec, block: Block, weights: Weights, name: str) -> None:
        layer = block.layer
        assert isinstance(layer, GatedDelta)
        self.name = name
        self.layer = layer
        hidden = spec.hidden
        self.qkv = linear(weights, f"{name}.in_proj_qkv", hidden)
        self.z = linear(weights, f"{name}.in_proj_z", hidden)
        self.a = linear(weights, f"{name}.in_proj_a", hidden)
        self.b = linear(weights, f"{name}.in_proj_b", hidden)
        self.out = linear(weights, f"{name}.out_proj", layer.value_heads * layer.value_dim)
        self.norm = Norm(weights, f"{name}.norm", spec.eps)
        # Stored [conv_dim, kernel, 1]; taps are rows here.
        self.taps = weights[f"{name}.conv1d.weight"].squeeze(-1).T.astype(mx.float32)
        self.decay_rate = mx.exp(weights[f"{name}.A_log"].astype(mx.float32))
        self.dt_bias = weights[f"{name}.dt_bias"]

    def decode(self, c: Context, x: mx.array, cache: Recurrent, step: Step) -> mx.array:
        """Advance every live lane's state by one token."""

        def advance(x: mx.array, state: mx.array, tail: mx.array) -> tuple[mx.array, ...]:
            qkv, z, decay, beta = self._project(c, x)
            inputs = mx.concatenate([tail, qkv[:, None]], axis=1)
            q, k, v = self._heads(self._convolve(inputs)[:, 0])
            inner = (q, k, v, decay, beta, state)
            if c.kernels is None:
                y, state = delta_step(*inner)
            else:
                now = [t[:, None] for t in inner[:-1]]
                y, state = c.kernels.gated_delta_step([*now, state], step.num_live)
                y = y.squeeze(1)
            return self._output(c, y.astype(x.dtype), z), state, inputs[:, 1:]

        out, state, tail = c.pure(self.name, step, advance, x, *cache.read(step.slots))
        n = step.num_live
        cache.write(step.slots[:n], state[:n], tail[:n])
        return out

    def prefill(self, c: Context, x: mx.array, cache: Recurrent, window: Window) -> mx.array:
        """Walk the present rows in time; absent rows leave state and tail alone."""
        qkv, z, decay, beta = self._project(c, x)
        slot = window.place.slot
        state, tail = cache.read([slot])
        rows, before = window.rows, self.layer.conv_kernel - 1
        # Row r's taps end at index r + before: the tail stands right before the first present row.
        inputs = mx.concatenate([tail[0], qkv[rows]])
        padded = mx.pad(inputs, [(rows.start, window.num_rows - rows.stop), (0, 0)])
        q, k, v = self._heads(self._convolve(padded[None])[0])
        inner = [t[rows] for t in (q, k, v, decay, beta)]
        if c.kernels is None:
            y, state = walk(*inner, state)
        else:
            y, state = c.kernels.gated_delta_step([*(t[None] for t in inner), state], 1)
            y = y.squeeze(0)
        cache.write([slot], state, inputs[None, inputs.shape[0] - before :])
        return self._output(c, window.fill(y).astype(x.dtype), z)

    def _project(self, c: Context, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Return qkv `[M, conv]`, z `[M, Hv Dv]`, decay and beta `[M, Hv]` in fp32."""
        qkv, z = self.qkv(c.ops, x), self.z(c.ops, x)
        a, b = self.a(c.ops, x), self.b(c.ops, x)
        for name, y in (("qkv", qkv), ("z", z), ("a", a), ("b", b)):
            c.tap(f"{self.name}.in_proj_{name}", y)
        decay = mx.exp(-self.decay_rate * nn.softplus(a + self.dt_bias).astype(mx.float32))
        return qkv, z, decay, mx.sigmoid(b).astype(mx.float32)

    def _convolve(self, inputs: mx.array) -> mx.array:
        """Return silu of the depthwise convolution, taps added in order; `[B, T + kernel - 1, c]`.

        Spelled out because it is short, and so depends on no kernel's choice.
        """
        kernel = self.layer.conv_kernel
        length = inputs.shape[1] - kernel + 1
        total = inputs[:, :length].astype(mx.float32) * self.taps[0]
        for j in range(1, kernel):
            total = total + inputs[:, j : j + length].astype(mx.float32) * self.taps[j]
        return nn.silu(total.astype(inputs.dtype))

    def _heads(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Return unit queries and keys `[M, Hv, Dk]`, values `[M, Hv, Dv]`, in fp32."""
        layer = self.layer
        width = layer.key_heads * layer.key_dim
        q, k, v = mx.split(x, [width, 2 * width], axis=-1)
        scale = layer.key_dim**-0.5
        eps = L2_EPS * scale**2  # rms_norm adds it to the mean, the reference to the sum
        shape = (x.shape[0], layer.key_heads, layer.key_dim)
        q = scale**2 * mx.fast.rms_norm(q.reshape(shape), None, eps)
        k = scale * mx.fast.rms_norm(k.reshape(shape), None, eps)
        repeat = layer.value_heads // layer.key_heads
        if repeat > 1:
            q, k = mx.repeat(q, repeat, axis=1), mx.repeat(k, repeat, axis=1)
        v = v.reshape(x.shape[0], layer.value_heads, layer.value_dim)
        return tuple(t.astype(mx.float32) for t in (q, k, v))

    def _output(self, c: Context, y: mx.array, z: mx.array) -> mx.array:
        """Norm, gate and project y `[M, Hv, Dv]`."""
        c.tap(f"{self.name}.delta", y.reshape(y.shape[0], -1))
        gate = nn.silu(z.reshape(y.shape).astype(mx.float32))
        gated = (gate * self.norm(y).astype(mx.float32)).astype(y.dtype)
        out = self.out(c.ops, gated.reshape(y.shape[0], -1))
        c.tap(f"{self.name}.out_proj", out)
        return out


def delta_step(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Return outputs `[M, Hv, Dv]` and the new state `[M, Hv, Dv, Dk]`, all fp32.

    `S' = decay S`, `d = beta (v - S' k)`, `S = S' + d k^T`, `y = S q`; each dot product is a row
    sum over `Dk`, and a row depends on nothing beside it. `kernels/gated_delta_step` has the same.
    """
    state = state * decay[..., None, None]
    key = k[..., None, :]
    delta = (v - (state * key).sum(axis=-1)) * beta[..., None]
    state = state + delta[..., None] * key
    return (state * q[..., None, :]).sum(axis=-1), state


def walk(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Return outputs `[T, Hv, Dv]` of one stream's T tokens in time, and the state `[1, ...]`."""
    outs = []
    for t in range(q.shape[0]):
        at = slice(t, t + 1)
        y, state = delta_step(q[at], k[at], v[at], decay[at], beta[at], state)
        outs.append(y)
    return mx.concatenate(outs), state
