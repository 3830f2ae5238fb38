"""What the config readers share: head sizes, context limits, number types, per-layer lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qwisp.spec.fields import Fields
from qwisp.spec.layers import FullAttention, Layer, SlidingWindow

_ELEMENT_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "bf16": 2,
    "fp16": 2,
    "half": 2,
    "fp32": 4,
    "float": 4,
    "auto": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What a family's reader returns: a layer per block, and those of a draft head."""

    layers: Sequence[Layer]
    draft: Sequence[Layer] = ()
    query_heads: int | None = None
    generic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Sizes of one attention: `queries` heads read `kv_heads` keys and values of `dim`."""

    queries: int
    kv_heads: int
    dim: int

    def full(self) -> FullAttention:
        """Return the layer that keeps every row."""
        return FullAttention(kv_heads=self.kv_heads, k_dim=self.dim, v_dim=self.dim)

    def sliding(self, window_tokens: int) -> SlidingWindow:
        """Return the layer that reads the last `window_tokens` rows."""
        return SlidingWindow(
            kv_heads=self.kv_heads, k_dim=self.dim, v_dim=self.dim, window_tokens=window_tokens
        )


def read_heads(f: Fields, **defaults: int) -> Heads:
    """Return the head sizes; `head_dim` follows from hidden size and heads where it is absent.

    `defaults` holds what a family's published configs leave out. Raises `BadConfig` where the
    sizes contradict each other.
    """
    queries = f.size("num_attention_heads", *_default(defaults, "num_attention_heads"))
    kv_heads = f.size("num_key_value_heads", defaults.get("num_key_value_heads", queries))
    if queries % kv_heads:
        raise f.conflict(
            "num_key_value_heads", f"is {kv_heads}, which does not divide {queries} query heads"
        )
    dim = f.size("head_dim", defaults.get("head_dim"))
    if dim is None:
        hidden = f.size("hidden_size")
        if hidden % queries:
            raise f.conflict(
                "num_attention_heads", f"is {queries}, which does not divide hidden_size {hidden}"
            )
        dim = hidden // queries
    return Heads(queries=queries, kv_heads=kv_heads, dim=dim)


def _default(defaults: dict[str, int], key: str) -> tuple[int, ...]:
    return (defaults[key],) if key in defaults else ()


def num_layers(f: Fields, key: str = "num_hidden_layers") -> int:
    """Return the number of blocks."""
    return f.check_depth(f.size(key), key)


def layer_types(f: Fields, depth: int, known: Sequence[str], key: str = "layer_types") -> list[str]:
    """Return the listed type of each block, checked for length and for unknown words."""
    types = f.items(key)
    if len(types) != depth:
        raise f.conflict(key, f"has {len(types)} entries for {depth} layers")
    for index, word in enumerate(types):
        if word not in known:
            raise f.conflict(key, f"[{index}] is {str(word)[:40]!r}, not one of {', '.join(known)}")
    return types


def every(depth: int, interval: int) -> list[bool]:
    """Return for each block whether it is the last of its group of `interval`.

    >>> every(4, 2)
    [False, True, False, True]
    """
    return [(index + 1) % interval == 0 for index in range(depth)]


def full_by_types(
    f: Fields, depth: int, other: str, interval_key: str, default: int | None = None
) -> list[bool]:
    """Return for each block whether it has full attention; otherwise it is of the `other` type.

    `layer_types` wins; without it every `interval_key`-th block is full. Raises `BadConfig` if both
    are there and disagree.
    """
    interval = f.size(interval_key, default)
    if not f.has("layer_types"):
        if interval is None:
            raise f.conflict("layer_types", f"is missing, and so is {interval_key}")
        return every(depth, interval)
    types = layer_types(f, depth, (other, "full_attention"))
    full = [word == "full_attention" for word in types]
    if f.has(interval_key) and full != every(depth, interval):
        raise f.conflict(interval_key, f"is {interval}, but layer_types has another pattern")
    return full


def indices(f: Fields, key: str, depth: int, *, base: int = 0) -> set[int]:
    """Return the set of block indices listed under `key`, counted from `base` in the config."""
    listed = f.sizes(key)
    for value in listed:
        if not base <= value < depth + base:
            raise f.conflict(key, f"holds {value}, but the layers are {base} to {depth + base - 1}")
    if len(set(listed)) != len(listed):
        raise f.conflict(key, "names a layer twice")
    return {value - base for value in listed}


def window_or_full(f: Fields, heads: Heads, window_tokens: int) -> Layer:
    """Return a sliding window, or full attention where the window covers the whole context."""
    limit = context_tokens(f)
    if limit is not None and window_tokens >= limit:
        return heads.full()
    return heads.sliding(window_tokens)


def context_tokens(f: Fields) -> int | None:
    """Return the longest context the model is made for; None where the config does not say.

    A `yarn` or `longrope` scaling of a shorter original context counts, if it reaches further.
    """
    limit = None
    for key in ("max_position_embeddings", "model_max_length", "max_seq_len", "n_positions"):
        if f.has(key):
            limit = f.size(key)
            break
    for key in ("rope_scaling", "rope_parameters"):
        if f.has(key) and limit is not None:
            limit = max(limit, _scaled(f.section(key)))
    return limit


def _scaled(rope: Fields) -> int:
    kind: Any = rope.raw("rope_type") or rope.raw("type")
    original = rope.raw("original_max_position_embeddings")
    factor = rope.raw("factor")
    if kind != "yarn" or original is None or factor is None:
        return 0
    original = rope.size("original_max_position_embeddings")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 10**6:
        raise rope.conflict("factor", f"is {str(factor)[:40]}, not a stretch of at least 1")
    return int(original * factor)


def element_bytes(f: Fields) -> int:
    """Return the bytes of one element of the model's number type, 2 where it is not given."""
    for key in ("dtype", "torch_dtype"):
        if f.has(key):
            word = f.text(key).removeprefix("torch.")
            if word not in _ELEMENT_BYTES:
                raise f.conflict(key, f"is {word[:40]!r}, not one of {', '.join(_ELEMENT_BYTES)}")
            return _ELEMENT_BYTES[word]
    return 2
