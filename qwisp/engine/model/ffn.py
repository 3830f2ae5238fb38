"""Feed-forward blocks: dense, a mixture of experts whose order is fixed, and both side by side."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from qwisp.engine.model.linear import Norm, Weights, experts, linear
from qwisp.engine.model.step import Context, Step, Window
from qwisp.engine.spec.decoder_spec import Activation, DecoderSpec, DenseFfn, MoeFfn, TwinFfn

SORT_FROM = 64
"""Stock mixtures sort rows by expert from so many indices on (mlx-lm's SwitchGLU)."""


def activate(kind: Activation, x: mx.array) -> mx.array:
    """Return the activation, elementwise."""
    return nn.silu(x) if kind == "silu" else nn.gelu_approx(x)


class Dense:
    """`down(activation(gate(x)) * up(x))` for x `[M, hidden]`."""

    def __init__(self, rule: DenseFfn, weights: Weights, name: str, hidden: int) -> None:
        self.name = name
        self.activation = rule.activation
        self.gate = linear(weights, f"{name}.gate_proj", hidden)
        self.up = linear(weights, f"{name}.up_proj", hidden)
        self.down = linear(weights, f"{name}.down_proj", rule.intermediate)

    def __call__(self, c: Context, x: mx.array, rows: Step | Window) -> mx.array:
        """Return `[M, hidden]`."""
        del rows
        gate, up = self.gate(c.ops, x), self.up(c.ops, x)
        c.tap(f"{self.name}.gate_proj", gate)
        c.tap(f"{self.name}.up_proj", up)
        y = self.down(c.ops, activate(self.activation, gate) * up)
        c.tap(f"{self.name}.down_proj", y)
        return y


class ExpertStack:
    """The experts of a mixture: gate, up and down per expert, summed by weight."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        *,
        hidden: int,
        intermediate: int,
        activation: Activation = "silu",
    ) -> None:
        self.activation: Activation = activation
        self.gate = experts(weights, f"{name}.gate_proj", hidden)
        self.up = experts(weights, f"{name}.up_proj", hidden)
        self.down = experts(weights, f"{name}.down_proj", intermediate)

    def ordered(self, x: mx.array, chosen: mx.array, picked: mx.array, c: Context, name: str):
        """Return `[M, hidden]`: experts `chosen` `[M, k]`, weighed by `picked`, in that order."""
        outs = self._run(c, x[:, None, None, :], chosen, in_order=False).squeeze(-2)
        c.tap(f"{name}.experts", outs)
        return sum_in_order(outs.astype(mx.float32) * picked[..., None]).astype(x.dtype)

    def stock(self, x: mx.array, chosen: mx.array, picked: mx.array, c: Context, name: str):
        """Return the same the usual way: rows sorted by expert from some size on."""
        if chosen.size < SORT_FROM:
            outs = self._run(c, x[:, None, None, :], chosen, in_order=False).squeeze(-2)
        else:
            flat = chosen.flatten()
            order = mx.argsort(flat)
            rows = x[order // chosen.shape[-1]][:, None, :]
            y = self._run(c, rows, flat[order], in_order=True)
            outs = y.squeeze(-2)[mx.argsort(order)].reshape(*chosen.shape, -1)
        c.tap(f"{name}.experts", outs)
        return (outs.astype(mx.float32) * picked[..., None]).sum(axis=-2).astype(x.dtype)

    def _run(self, c: Context, x: mx.array, chosen: mx.array, *, in_order: bool) -> mx.array:
        gate = self.gate(c.ops, x, chosen, in_order=in_order)
        up = self.up(c.ops, x, chosen, in_order=in_order)
        inner = activate(self.activation, gate) * up
        return self.down(c.ops, inner, chosen, in_order=in_order)


class Mixture:
    """Top-k experts of every row, and perhaps a shared expert beside them."""

    def __init__(self, rule: MoeFfn, weights: Weights, name: str, hidden: int) -> None:
        self.name = name
        self.rule = rule
        self.router = linear(weights, f"{name}.gate", hidden)
        self.stack = ExpertStack(
            weights, f"{name}.switch_mlp", hidden=hidden, intermediate=rule.intermediate
        )
        self.shared = None
        if rule.shared_intermediate:
            dense = DenseFfn(intermediate=rule.shared_intermediate)
            self.shared = Dense(dense, weights, f"{name}.shared_expert", hidden)
            self.shared_gate = linear(weights, f"{name}.shared_expert_gate", hidden)

    def __call__(self, c: Context, x: mx.array, rows: Step | Window) -> mx.array:
        """Return `[M, hidden]`."""
        scores = mx.softmax(self.router(c.ops, x).astype(mx.float32), axis=-1)
        c.tap(f"{self.name}.gate", scores)
        if c.guards.ordered_router:
            y = self._ordered(c, x, scores, rows)
        else:
            y = self._stock(c, x, scores)
        c.tap(f"{self.name}.switch_mlp", y)
        if self.shared is not None:
            gate = mx.sigmoid(self.shared_gate(c.ops, x))
            c.tap(f"{self.name}.shared_expert_gate", gate)
            y = y + gate * self.shared(c, x, rows)
        return y

    def _ordered(self, c: Context, x: mx.array, scores: mx.array, rows: Step | Window) -> mx.array:
        chosen = rows.own_choice(top_k(scores, self.rule.top_k))
        c.tap(f"{self.name}.top_k", chosen)
        picked = mx.take_along_axis(scores, chosen, axis=-1)
        if self.rule.normalises:
            picked = picked / sum_in_order(picked)[:, None]
        return self.stack.ordered(x, chosen, picked, c, self.name)

    def _stock(self, c: Context, x: mx.array, scores: mx.array) -> mx.array:
        """The usual way, kept to show what it costs: partitioned choice, sorted rows."""
        chosen = partitioned_top_k(scores, self.rule.top_k)
        picked = mx.take_along_axis(scores, chosen, axis=-1)
        if self.rule.normalises:
            picked = picked / picked.sum(axis=-1, keepdims=True)
        return self.stack.stock(x, chosen, picked, c, self.name)


def partitioned_top_k(scores: mx.array, k: int) -> mx.array:
    """Return the k best indices per row in whatever order a partition leaves them."""
    return mx.argpartition(scores, kth=-k, axis=-1)[..., -k:]


def top_k(scores: mx.array, k: int) -> mx.array:
    """Return the k best indices per row by (-score, index); scores `[M, E]` in fp32, no NaN.

    Floats order like their bits once those of negative ones are turned over, so one unsigned key
    holds score and index, no two keys are equal, and a sort of them depends on no kernel's idea of
    stability.

    >>> top_k(mx.array([[0.25, 0.5, 0.25, -1.0, -0.0, 0.0]]), 5).tolist()
    [[1, 0, 2, 4, 5]]
    """
    bits = (scores.astype(mx.float32) + 0.0).view(mx.uint32)  # -0.0 + 0.0 is 0.0: they tie
    # Descending: a positive float's own bits count down from the top, a negative one's count up.
    worst_first = mx.where(bits >> 31, bits, 0x7FFFFFFF - bits).astype(mx.uint64)
    index = mx.arange(scores.shape[-1], dtype=mx.uint64)
    keys = mx.sort(worst_first * (1 << 32) + index, axis=-1)[..., :k]
    return (keys & 0xFFFFFFFF).astype(mx.uint32)


def sum_in_order(x: mx.array) -> mx.array:
    """Return the sum over axis 1, from index 0 on.

    >>> sum_in_order(mx.array([[1.0, 2.0, 3.0]])).tolist()
    [6.0]
    """
    total = x[:, 0]
    for j in range(1, x.shape[1]):
        total = total + x[:, j]
    return total


class Twin:
    """`norm(dense(norm(x))) + norm(experts(norm(x)))` for x `[M, hidden]`.

    The router sees x under a norm whose weight is divided by the square root of the hidden size.
    """

    def __init__(self, spec: DecoderSpec, rule: TwinFfn, weights: Weights, name: str) -> None:
        def norm(which: str) -> Norm:
            return Norm(weights, f"{name}.{which}", spec.eps, spec.norm_offset)

        self.name = name
        self.rule = rule
        self.eps = spec.eps
        self.dense = Dense(rule.dense, weights, f"{name}.mlp", spec.hidden)
        self.stack = ExpertStack(
            weights,
            f"{name}.experts.switch_glu",
            hidden=spec.hidden,
            intermediate=rule.intermediate,
            activation=rule.dense.activation,
        )
        self.router = linear(weights, f"{name}.router.proj", spec.hidden)
        self.router_norm = weights[f"{name}.router.scale"] * spec.hidden**-0.5
        self.factors = weights[f"{name}.router.per_expert_scale"]
        self.before_dense = norm("pre_feedforward_layernorm")
        self.after_dense = norm("post_feedforward_layernorm_1")
        self.before_experts = norm("pre_feedforward_layernorm_2")
        self.after_experts = norm("post_feedforward_layernorm_2")

    def __call__(self, c: Context, x: mx.array, rows: Step | Window) -> mx.array:
        """Return `[M, hidden]`."""
        dense = self.after_dense(self.dense(c, self.before_dense(x), rows))
        scores = self.router(c.ops, mx.fast.rms_norm(x, self.router_norm, self.eps))
        c.tap(f"{self.name}.router", scores)
        k, inner = self.rule.top_k, self.before_experts(x)
        if c.guards.ordered_router:
            chosen = rows.own_choice(top_k(scores, k))
            c.tap(f"{self.name}.top_k", chosen)
            y = self.stack.ordered(inner, chosen, self._weights(scores, chosen), c, self.name)
        else:
            chosen = partitioned_top_k(scores, k)
            y = self.stack.stock(inner, chosen, self._weights(scores, chosen), c, self.name)
        return dense + self.after_experts(y)

    def _weights(self, scores: mx.array, chosen: mx.array) -> mx.array:
        """Return `[M, k]`: softmax over the chosen, times each expert's own factor."""
        picked = mx.softmax(mx.take_along_axis(scores, chosen, axis=-1), axis=-1)
        return (picked * self.factors[chosen]).astype(mx.float32)
