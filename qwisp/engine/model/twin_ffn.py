"""A dense block and experts side by side: gemma 4's feed-forward block."""

from __future__ import annotations

import mlx.core as mx

from qwisp.engine.model.ffn import Dense, ExpertStack, partitioned_top_k, top_k
from qwisp.engine.model.linear import Weights, linear
from qwisp.engine.model.norms import Norm
from qwisp.engine.model.step import Context, Step, Window
from qwisp.engine.spec.decoder_spec import DecoderSpec, TwinFfn


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
