"""From logits to tokens. A random draw is keyed by (seed, position), so a lane draws alone."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from qwisp.errors import BadInput, QwispError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Greedy at temperature 0, else a draw from softmax(logits / temperature).

    Raises `BadInput` for a negative temperature or a seed outside 32 bits.
    """

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise BadInput(f"temperature is {self.temperature}", "use 0 (greedy) or more, like 0.7")
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"seed is {self.seed}", "use a whole number from 0 to 4294967295")


GREEDY = Sampling()


class DrawFailed(QwispError):
    """The draw of one row failed; the others' are not known yet."""

    def __init__(self, row: int, error: Exception) -> None:
        what = f"the draw failed: {type(error).__name__}: {error}".partition("\n")[0]
        super().__init__(what, "look at the request's sampling")
        self.row = row


def choose(logits: mx.array, rules: list[Sampling], positions: list[int]) -> mx.array:
    """Return the next token of each row, `[M]` int32, for logits `[M, vocab]`.

    Row i of the first `len(rules)` follows `rules[i]` with the key (seed, `positions[i]`); further
    rows are idle and greedy. Raises `DrawFailed` naming the row.
    """
    tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
    for row, (rule, position) in enumerate(zip(rules, positions, strict=True)):
        if rule.temperature > 0:
            try:
                tokens[row] = draw(logits[row], rule, position)
            except Exception as error:  # whatever it is, it is of this row
                raise DrawFailed(row, error) from error
    return tokens


def draw(logits: mx.array, rule: Sampling, position: int) -> mx.array:
    """Return one token for logits `[vocab]`: the largest of logits / temperature + Gumbel noise.

    >>> a = draw(mx.zeros((8,)), Sampling(temperature=1.0, seed=3), 5)
    >>> a.item() == draw(mx.zeros((8,)), Sampling(temperature=1.0, seed=3), 5).item()
    True
    """
    key = mx.array([rule.seed, position], mx.uint32)
    noise = mx.random.gumbel(logits.shape, key=key)
    return mx.argmax(logits.astype(mx.float32) / rule.temperature + noise).astype(mx.int32)
