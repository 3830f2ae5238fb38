"""What a model's caches cost at a context, by term, in whole bytes."""

from __future__ import annotations

from dataclasses import dataclass

from qwisp.errors import BadInput
from qwisp.memory.dialect import Dialect, Terms
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.spec.model import ModelSpec

MAX_CONTEXT_TOKENS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFootprint:
    """Bytes of all caches of a model by class of layer, as one engine allocates them."""

    dialect: str
    context_tokens: int
    sequences: int
    terms: Terms
    bytes_per_token: int

    @property
    def full_bytes(self) -> int:
        """Rows of full attention (and of latent attention), which grow with the context."""
        return self.terms.full_key_bytes + self.terms.full_value_bytes

    @property
    def ring_bytes(self) -> int:
        """Rows of sliding windows."""
        return self.terms.ring_key_bytes + self.terms.ring_value_bytes

    @property
    def state_bytes(self) -> int:
        """Recurrent states."""
        return self.terms.state_bytes

    @property
    def conv_bytes(self) -> int:
        """Tails of convolutions."""
        return self.terms.conv_bytes

    @property
    def pooled_bytes(self) -> int:
        """Rows that stand for several tokens each."""
        return self.terms.pooled_bytes

    @property
    def fixed_bytes(self) -> int:
        """What a sequence costs whatever its length: states and convolution tails."""
        return self.terms.state_bytes + self.terms.conv_bytes

    @property
    def key_bytes(self) -> int:
        """The keys alone, of full attention and windows together."""
        return self.terms.full_key_bytes + self.terms.ring_key_bytes

    @property
    def total_bytes(self) -> int:
        """The sum of all terms."""
        return sum(self.terms)

    def by_term(self) -> dict[str, int]:
        """Return `{"full": bytes, ...}`, without the terms this model does not have."""
        names = ("full", "ring", "pooled", "state", "conv")
        return {name: size for name in names if (size := getattr(self, f"{name}_bytes"))}


def cache_bytes(
    spec: ModelSpec, context_tokens: int, dialect: Dialect | None = None, *, draft: bool = False
) -> CacheFootprint:
    """Return the caches of `spec` at `context_tokens`, as `dialect` allocates them.

    `dialect` defaults to this project's own engine. `draft` adds the layers of the draft head.
    Raises `BadInput` for a context that is not a whole number above zero.

    >>> from qwisp.memory.engines.fieldfare import Fieldfare
    >>> from qwisp.spec.catalog import load_model
    >>> cache_bytes(load_model("gemma-4-26b-a4b"), 4096, Fieldfare()).total_bytes // 2**20
    305
    """
    if isinstance(context_tokens, bool) or not isinstance(context_tokens, int):
        raise BadInput(f"context {context_tokens!r} is not a whole number", "give tokens")
    if not 1 <= context_tokens <= MAX_CONTEXT_TOKENS:
        raise BadInput(
            f"context {context_tokens:,} is out of range",
            f"give 1 to {MAX_CONTEXT_TOKENS:,} tokens",
        )
    dialect = dialect or Qwisp()
    caches = spec.caches + (spec.draft_caches if draft else ())
    return CacheFootprint(
        dialect=dialect.name,
        context_tokens=context_tokens,
        sequences=dialect.sequences,
        terms=dialect.terms(caches, context_tokens, spec),
        bytes_per_token=dialect.bytes_per_token(caches, spec),
    )
