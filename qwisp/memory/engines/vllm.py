"""vLLM: one pool of pages for all layers of a rank; hybrids share pages between their groups.

Layers of one kind are cut into groups of equal size, and each page serves one group: a page of the
attention group holds a block of tokens, a page of a recurrent group holds one sequence's state. So
the block is stretched until a state fits, and what the log prints as tokens is
`pages // groups x block`, which is not what the pool can hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qwisp.errors import BadInput
from qwisp.memory.dialect import (
    CacheRows,
    DefaultShare,
    Dialect,
    Terms,
    conv_elements,
    state_elements,
)
from qwisp.memory.engines.pool import Pool, Pooled, shard
from qwisp.memory.row_types import row_bytes, type_of
from qwisp.spec.layers import Layer, Mla, Recurrent
from qwisp.spec.model import ModelSpec

BLOCK_TOKENS = 16
MLA_BLOCK_TOKENS = 64
EVEN_GROUPS = 1.25
"""Up to this ratio of layer counts, the short kind is padded instead of the long one cut."""


MODEL_TYPE_STATES = frozenset({"qwen3_next", "falcon_h1", "granitemoehybrid", "bamba", "jamba"})
"""Families whose recurrent state is kept in the model's own type unless their config says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """How a hybrid's pool is cut: bytes of a page, tokens of a block, layers that share a page."""

    page_bytes: int
    block_tokens: int
    group_layers: int
    attention_groups: int
    state_groups: int

    @property
    def groups(self) -> int:
        """All groups."""
        return self.attention_groups + self.state_groups

    @property
    def bytes_each(self) -> int:
        """Bytes of one page over all the layers that share it."""
        return self.page_bytes * self.group_layers

    def printed_tokens(self, num_pages: int) -> int:
        """Return the tokens that the log prints for a pool."""
        return num_pages // self.groups * self.block_tokens

    def of_sequence(self, context_tokens: int) -> int:
        """Return the pages one sequence needs: its blocks, and a state per recurrent group."""
        blocks = -(-context_tokens // self.block_tokens)
        return blocks * self.attention_groups + self.state_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Pooled):
    """One rank's pool.

    `state_type` is the type of recurrent states; None takes f32, or the model's own type for the
    families whose states the engine keeps in it.
    """

    name: ClassVar[str] = "vllm"
    default_share: ClassVar[DefaultShare | None] = DefaultShare(0.9, "vLLM's default of ")

    block_tokens: int = BLOCK_TOKENS
    state_type: str | None = None

    def recurrent_terms(self, layer: Layer, spec: ModelSpec) -> Terms:
        """Return one sequence's state on this rank."""
        kept = type_of(spec.element_bytes) if spec.family in MODEL_TYPE_STATES else "f32"
        state = shard(state_elements(layer), self.tensor_parallel)
        return Terms(
            state_bytes=row_bytes(self.state_type or kept, state),
            conv_bytes=shard(conv_elements(layer), self.tensor_parallel)
            * self.conv_element_bytes(spec),
        )

    def pages(self, caches: Sequence[Layer], spec: ModelSpec) -> Pages:
        """Return how the pool of a model with recurrent layers is cut.

        Raises `BadInput` for a model without both attention and recurrent layers.
        """
        counts = Counter(caches)
        states = {x: n for x, n in counts.items() if isinstance(x, Recurrent)}
        attention = {x: n for x, n in counts.items() if not isinstance(x, Recurrent)}
        if not states or not attention:
            raise BadInput("the model is no hybrid", "pages are shared only between kinds")
        row = max(sum(self.rows(x, spec)) for x in attention)
        state = max(sum(self.recurrent_terms(x, spec)) for x in states)
        align = MLA_BLOCK_TOKENS if any(isinstance(x, Mla) for x in attention) else BLOCK_TOKENS
        block = max(self.block_tokens, -(-state // (row * align)) * align)
        size = _group_layers([*states.values(), *attention.values()])
        return Pages(
            page_bytes=block * row,
            block_tokens=block,
            group_layers=size,
            attention_groups=sum(-(-n // size) for n in attention.values()),
            state_groups=sum(-(-n // size) for n in states.values()),
        )

    def terms(self, caches: Sequence[Layer], context_tokens: int, spec: ModelSpec) -> Terms:
        """Return the pool; in a hybrid, pages of state groups count as state."""
        recurrent = any(isinstance(layer, Recurrent) for layer in caches)
        if not recurrent or all(isinstance(layer, Recurrent) for layer in caches):
            return Dialect.terms(self, caches, context_tokens, spec)
        pages = self.pages(caches, spec)
        if self.pool_tokens is None:
            blocks = -(-context_tokens // pages.block_tokens) * self.n_seq
            return _split(pages, blocks, self.n_seq, self._key_share(caches, spec))
        blocks = -(-self.pool_tokens // pages.block_tokens)
        return _split(pages, blocks, blocks, self._key_share(caches, spec))

    def _key_share(self, caches: Sequence[Layer], spec: ModelSpec) -> CacheRows:
        rows = [self.rows(layer, spec) for layer in caches if not isinstance(layer, Recurrent)]
        return CacheRows(*map(sum, zip(*rows, strict=True)))

    def pool_of(self, model: ModelSpec, context_tokens: int, pool_bytes: int) -> Pool:
        """Return what a pool holds. In a hybrid the printed tokens are not what fits: a state takes
        pages of every sequence too, so capacity is counted in pages.
        """
        if not any(isinstance(layer, Recurrent) for layer in model.caches):
            return Pooled.pool_of(self, model, context_tokens, pool_bytes)
        pages = self.pages(model.caches, model)
        num = pool_bytes // pages.bytes_each
        return Pool(pages.printed_tokens(num), num / pages.of_sequence(context_tokens))

    def log_lines(
        self, model: ModelSpec, context_tokens: int, pool_bytes: int | None = None
    ) -> tuple[str, ...]:
        """Return the pool's tokens, and how many whole contexts it holds."""
        if not pool_bytes or pool_bytes < 0:
            return ()
        pool = self.pool_of(model, context_tokens, pool_bytes)
        each = f"Maximum concurrency for {context_tokens:,} tokens per request"
        return (f"GPU KV cache size: {pool.tokens:,} tokens", f"{each}: {pool.contexts:.2f}x")


def _split(pages: Pages, blocks: int, states: int, row: CacheRows) -> Terms:
    """Return the bytes of so many blocks and states; keys share a block as they share a row."""
    full = blocks * pages.attention_groups * pages.bytes_each
    keys = full * row.key_bytes // sum(row)
    return Terms(
        full_key_bytes=keys,
        full_value_bytes=full - keys,
        state_bytes=states * pages.state_groups * pages.bytes_each,
    )


def _group_layers(counts: list[int]) -> int:
    """Return how many layers share a page: the fewest of a kind, or the most if nearly as many."""
    least, most = min(counts), max(counts)
    return most if most < least * EVEN_GROUPS else least
