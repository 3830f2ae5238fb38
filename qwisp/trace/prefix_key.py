"""Chained hashes of a prompt's blocks: equal key i means equal tokens up to the end of block i.

Keys have 63 bits, so that JSON readers and signed 64-bit columns hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

_START = 0


def chain(previous: int, block: Iterable[int]) -> int:
    """Return the key of a block whose predecessor has the key `previous` (0 for the first one)."""
    text = " ".join(map(str, block))
    digest = blake2b(f"{previous}:{text}".encode(), digest_size=8, person=b"qwisp prefix").digest()
    return int.from_bytes(digest, "big") >> 1


def prefix_keys(tokens: Sequence[int], step_tokens: int) -> tuple[int, ...]:
    """Return a key per started block of `step_tokens` tokens; the last block may be partial.

    >>> a, b = prefix_keys([1, 2, 3, 4, 5], 2), prefix_keys([1, 2, 3, 9], 2)
    >>> len(a), a[0] == b[0], a[1] == b[1]
    (3, True, False)
    """
    keys, previous = [], _START
    for start in range(0, len(tokens), step_tokens):
        previous = chain(previous, tokens[start : start + step_tokens])
        keys.append(previous)
    return tuple(keys)


def segment_keys(segments: Sequence[tuple[int, int]], step_tokens: int) -> tuple[int, ...]:
    """Return the keys of a prompt made of `(segment id, tokens)`: for texts that are only lengths.

    Two prompts share keys as far as they begin with the same segments.

    >>> a, b = segment_keys([(1, 600), (2, 100)], 512), segment_keys([(1, 600), (3, 100)], 512)
    >>> a[0] == b[0], a[1] == b[1]
    (True, False)
    """
    pieces: list[int] = []
    keys, room, previous = [], step_tokens, _START
    for segment, length in segments:
        start = 0
        while start < length:
            taken = min(room, length - start)
            pieces += (segment, start, taken)
            start, room = start + taken, room - taken
            if room == 0:
                previous = chain(previous, pieces)
                keys.append(previous)
                pieces, room = [], step_tokens
    if pieces:
        keys.append(chain(previous, pieces))
    return tuple(keys)
