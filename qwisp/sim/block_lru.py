"""The usual block-weighted hit rate of a prefix cache, for comparison with the prefix store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from qwisp.errors import BadInput
from qwisp.trace.request import Request


def block_lru(requests: Iterable[Request], num_blocks: int | None = None) -> float:
    """Return the share of blocks found in a cache of `num_blocks` blocks (None: unbounded).

    A request hits its longest prefix of cached blocks. All its blocks are touched and inserted
    tail first, so that of one prompt the tail leaves before the head; what is too much leaves
    after each request, least recently used first. No time passes: a block is there for the next
    request. Raises `BadInput` for a negative number of blocks.

    >>> asks = [Request(i, 0, 1536, 1, None, keys) for i, keys in enumerate([(1, 2, 3), (1, 2, 4)])]
    >>> block_lru(asks), block_lru(asks, 1)
    (0.3333333333333333, 0.16666666666666666)
    """
    if num_blocks is not None and num_blocks < 0:
        raise BadInput(f"a cache of {num_blocks} blocks", "give 0 or more, or None for no bound")
    cached: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for request in requests:
        total += len(request.prefix)
        for key in request.prefix:
            if key not in cached:
                break
            hits += 1
        for key in reversed(request.prefix):
            cached[key] = None
            cached.move_to_end(key)
        while num_blocks is not None and len(cached) > num_blocks:
            cached.popitem(last=False)
    return hits / total if total else 0.0
