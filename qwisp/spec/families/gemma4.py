"""Gemma 4: windows and full attention of different head sizes; last blocks may share caches."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, Heads, every, layer_types, num_layers, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Layer, Shared


def read(f: Fields) -> Blocks:
    """Return the blocks; the last `num_kv_shared_layers` read an earlier block of their kind."""
    depth = num_layers(f)
    local = read_heads(f, head_dim=256)
    full = _full_heads(f, local)
    window = f.size("sliding_window")
    if f.has("layer_types"):
        types = layer_types(f, depth, ("sliding_attention", "full_attention"))
    else:
        last = every(depth, f.size("sliding_window_pattern", 6))
        types = ["full_attention" if one else "sliding_attention" for one in last]
    owners = depth - shared_depth(f, depth)
    made = [full.full() if t == "full_attention" else local.sliding(window) for t in types]
    layers: list[Layer] = list(made[:owners])
    for index in range(owners, depth):
        layers.append(Shared(source=last_of(f, types, types[index], owners)))
    return Blocks(layers=layers, query_heads=local.queries)


def _full_heads(f: Fields, local: Heads) -> Heads:
    """Full-attention blocks have heads of their own size; fewer of them if keys are the values."""
    kv_heads = local.kv_heads
    if f.flag("attention_k_eq_v", False):
        kv_heads = f.size("num_global_key_value_heads", kv_heads)
    if local.queries % kv_heads:
        raise f.conflict(
            "num_global_key_value_heads",
            f"is {kv_heads}, which does not divide {local.queries} query heads",
        )
    return Heads(queries=local.queries, kv_heads=kv_heads, dim=f.size("global_head_dim", 512))


def shared_depth(f: Fields, depth: int) -> int:
    """Return how many of the last blocks have no cache of their own."""
    shared = f.count("num_kv_shared_layers", 0)
    if shared >= depth:
        raise f.conflict("num_kv_shared_layers", f"is {shared} of {depth} layers: none has a cache")
    return shared


def last_of(f: Fields, types: list[str], kind: str, owners: int) -> int:
    """Return the last block of `kind` among those that own a cache."""
    for index in range(owners - 1, -1, -1):
        if types[index] == kind:
            return index
    raise f.conflict("num_kv_shared_layers", f"leaves no {kind} layer to share from")
