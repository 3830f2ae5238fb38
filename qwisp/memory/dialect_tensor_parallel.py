"""What one rank of a tensor-parallel server holds of a layer."""

from __future__ import annotations

from dataclasses import replace

from qwisp.errors import BadInput
from qwisp.spec.layers import FullAttention, Layer, Mla, SlidingWindow


def rank_rows(layer: Layer, ranks: int, *, latent: bool = True) -> Layer:
    """Return the attention layer as one rank sees it.

    Heads are divided; with more ranks than heads each rank holds a copy of one. A latent row is
    held whole by every rank; without the latent form the heads are divided as usual.

    >>> rank_rows(FullAttention(kv_heads=4, k_dim=128, v_dim=128), 8).kv_heads
    1
    """
    match layer:
        case FullAttention() | SlidingWindow():
            return replace(layer, kv_heads=shard_heads(layer.kv_heads, ranks))
        case Mla() if not latent:
            if not layer.heads or not layer.v_dim:
                raise BadInput("a row per head needs the head sizes", "give heads, k_dim, v_dim")
            return FullAttention(
                kv_heads=shard_heads(layer.heads, ranks),
                k_dim=layer.nope_dim + layer.rope_dim,
                v_dim=layer.v_dim,
            )
    return layer


def shard_heads(heads: int, ranks: int) -> int:
    """Return the heads of one rank, at least one. Raises `BadInput` if they do not divide."""
    if max(heads, ranks) % min(heads, ranks):
        raise BadInput(f"{heads} heads do not divide over {ranks} ranks", "use a divisor")
    return max(1, heads // ranks)


def shard(elements: int, ranks: int) -> int:
    """Return a rank's share of a state, rounded up."""
    return -(-elements // ranks)
