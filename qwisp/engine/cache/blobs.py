"""Prefix blobs: a stream's first tokens as they lie in the arena, kept to start another one from.

Rows are stored exactly (no unused ones), rings in ring order, recurrent state at that very token:
state cannot be cut back, so a blob restores whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from qwisp.engine.cache.arena import Arena
from qwisp.engine.cache.buffers import KvCopy, StateCopy
from qwisp.errors import QwispError
from qwisp.scheduling.contract import Place


class BlobUnusable(QwispError):
    """A blob that is gone, too long for the session, or was saved at another token."""


@dataclass(frozen=True, slots=True)
class Blob:
    """The first `num_tokens` tokens of a stream, by layer."""

    num_tokens: int
    parts: tuple[KvCopy | StateCopy, ...]

    @property
    def num_bytes(self) -> int:
        """What it occupies."""
        return sum(array.nbytes for part in self.parts for array in part)


class Blobs:
    """Blobs by key. What to keep is the scheduler's decision; nothing is dropped here by itself."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._kept: dict[int, Blob] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.num_bytes for blob in self._kept.values())

    def take(self, place: Place, num_tokens: int) -> Blob:
        """Return a copy of a stream that has exactly `num_tokens` tokens now."""
        parts = tuple(buffer.save(place, num_tokens) for buffer in self._arena.buffers)
        return Blob(num_tokens, parts)

    def keep(self, key: int, blob: Blob) -> None:
        """Keep a blob under a key."""
        self._kept[key] = blob

    def drop(self, key: int) -> None:
        """Forget a key; one that is not kept is no error."""
        self._kept.pop(key, None)

    def restore(self, key: int, num_tokens: int, place: Place) -> None:
        """Write a blob into a place.

        Raises `BlobUnusable` when it is gone, was saved at another token, or does not fit.
        """
        blob = self._kept.get(key)
        if blob is None:
            raise BlobUnusable(f"prefix blob {key} is gone", "prefill the prompt from its start")
        if blob.num_tokens != num_tokens:
            raise BlobUnusable(
                f"prefix blob {key} holds {blob.num_tokens} tokens, {num_tokens} were asked",
                "recurrent state cannot be cut back: restore the whole blob",
            )
        if num_tokens > place.num_rows:
            raise BlobUnusable(
                f"prefix blob {key} has {num_tokens} rows, the session {place.num_rows}",
                f"restore it into a session of {num_tokens} rows or more",
            )
        for buffer, part in zip(self._arena.buffers, blob.parts, strict=True):
            buffer.load(place, part)
        mx.eval(self._arena.arrays)
