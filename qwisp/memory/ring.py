"""The ring rule: how many rows a sliding window keeps while chunks of a prompt pass through it."""

from __future__ import annotations


def ring_rows(context_tokens: int, window_tokens: int, chunk_tokens: int) -> int:
    """Return `min(context, window + chunk)`: a chunk is written before its first row may go.

    >>> ring_rows(65536, 1024, 128), ring_rows(512, 1024, 128)
    (1152, 512)
    """
    return min(context_tokens, window_tokens + chunk_tokens)
