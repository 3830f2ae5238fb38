"""Blocks that read the cache of an earlier block of their kind."""

from __future__ import annotations

from collections.abc import Sequence

from qwisp.spec.fields import Fields
from qwisp.spec.layers import Layer, Shared


def share_tail(f: Fields, made: Sequence[Layer], full: Sequence[bool], key: str) -> list[Layer]:
    """Return `made` with the last `key` blocks reading the last owner of their kind.

    Raises `BadConfig` if no owner is left, or none of a kind that is shared.
    """
    depth, shared = len(made), f.count(key, 0)
    if shared >= depth:
        raise f.conflict(key, f"is {shared} of {depth} layers: none has a cache")
    owners = depth - shared
    layers = list(made[:owners])
    for kind in full[owners:]:
        sources = [index for index in range(owners) if full[index] == kind]
        if not sources:
            raise f.conflict(key, f"is {shared}, which leaves no layer of a kind to share from")
        layers.append(Shared(source=sources[-1]))
    return layers
