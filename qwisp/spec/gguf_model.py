"""A `ModelSpec` from a GGUF header: its keys are an architecture's own, prefixed with its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwisp.errors import BadConfig
from qwisp.spec.families.common import every
from qwisp.spec.families.sharing import share_tail
from qwisp.spec.fields import Fields
from qwisp.spec.gguf import read_gguf_metadata
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Layer,
    Mamba1,
    Mamba2,
    Mla,
    Parallel,
    ShortConv,
    SlidingWindow,
    Stateless,
)
from qwisp.spec.model import ModelSpec

WINDOW_INTERVAL = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma4": 6,
    "gpt-oss": 2,
    "cohere2": 4,
    "olmo2": 4,
    "exaone4": 4,
}
"""Architectures whose windows count, and every how many blocks attention is full.

Other architectures may carry a window that their engine does not use: it is noted and left out.
"""

DELTA_ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")
_PLAIN = frozenset(
    {"llama", "mistral3", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl"}
    | {"phi2", "phi3", "phimoe", "glm4", "glm4moe", "chatglm", "gemma", "granite", "granitemoe"}
    | {"olmo", "olmoe", "starcoder2", "command-r", "internlm2", "minicpm", "smollm3", "stablelm"}
)


def spec_from_gguf(path: Path) -> ModelSpec:
    """Return the model that a GGUF file's header describes.

    Raises `BadInput` or `BadConfig` (naming the key) for a file that is damaged, an architecture
    that is not understood, or sizes that contradict each other.
    """
    metadata = read_gguf_metadata(path)
    general = Fields(metadata)
    architecture = general.text("general.architecture")
    prefix = architecture + "."
    own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    f = Fields(own, prefix)
    depth = f.check_depth(f.size("block_count"), "block_count")
    draft = f.count("nextn_predict_layers", 0)
    if draft >= depth:
        raise f.conflict("nextn_predict_layers", f"is {draft} of {depth} blocks")
    layers = _reader(architecture, f)(f, architecture, depth)
    return ModelSpec(
        name=general.text("general.name", None) or path.stem,
        family=architecture,
        layers=tuple(layers[: depth - draft]),
        draft_layers=tuple(layers[depth - draft :]),
        context_max_tokens=f.size("context_length", None),
        hidden=f.size("embedding_length", None),
        query_heads=_most(f.raw("attention.head_count")),
        vocab=f.size("vocab_size", None),
        source=str(path),
        notes=tuple(f.notes),
        generic=architecture not in _KNOWN,
    )


def _most(heads: Any) -> int | None:
    """Return the query heads of the block that has most; a list has one entry a block."""
    counts = heads if isinstance(heads, list) else [heads]
    whole = [n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return max(whole, default=None)


def _reader(architecture: str, f: Fields) -> Callable[[Fields, str, int], list[Layer]]:
    for names, read in _READERS:
        if architecture in names:
            return read
    foreign = ("ssm.", "wkv.", "shortconv.", "kda.", "attention.sliding", "attention.kv_lora")
    hint = next((key for key in f.values if key.startswith(foreign)), None)
    if hint is not None:
        raise BadConfig(
            f"general.architecture {architecture[:60]!r} is not understood: it has {hint[:60]}",
            f"understood are {', '.join(sorted(_KNOWN))}",
            key="general.architecture",
        )
    f.notes.append(f"{architecture[:60]} is not a known architecture: read as grouped attention")
    return _attention


def _per_block(f: Fields, key: str, depth: int) -> list[int]:
    """Return a number for every block from one number, or from a list with one entry a block."""
    if not isinstance(f.raw(key), list):
        return [f.count(key)] * depth
    listed = f.sizes(key)
    if len(listed) != depth:
        raise f.conflict(key, f"has {len(listed)} entries for {depth} blocks")
    return listed


def _kv_heads(f: Fields, depth: int) -> list[int]:
    key = "attention.head_count_kv"
    heads = _per_block(f, key if f.has(key) else "attention.head_count", depth)
    for queries, kv in zip(_per_block(f, "attention.head_count", depth), heads, strict=True):
        if kv and queries % kv:
            raise f.conflict(key, f"has {kv}, which does not divide {queries} query heads")
    return heads


def _head_dims(f: Fields, suffix: str = "") -> tuple[int, int]:
    """Return key and value sizes of a head; they follow from the embedding where absent."""
    default = None
    if not f.has("attention.key_length"):
        queries = _most(f.raw("attention.head_count")) or 0
        hidden = f.size("embedding_length")
        if not queries or hidden % queries:
            raise f.conflict("attention.head_count", f"does not divide embedding_length {hidden}")
        default = hidden // queries
    key = f.size("attention.key_length", default)
    value = f.size("attention.value_length", default or key)
    return (
        f.size(f"attention.key_length{suffix}", key),
        f.size(f"attention.value_length{suffix}", value),
    )


def _full(f: Fields, kv_heads: int) -> FullAttention:
    key, value = _head_dims(f)
    return FullAttention(kv_heads=kv_heads, k_dim=key, v_dim=value)


def _attention(f: Fields, architecture: str, depth: int) -> list[Layer]:
    """Grouped attention, with the windows of architectures that use them."""
    heads = _kv_heads(f, depth)
    if 0 in heads:
        raise f.conflict("attention.head_count_kv", "has a block without heads")
    layers: list[Layer] = [_full(f, n) for n in heads]
    full = [True] * depth
    if architecture in WINDOW_INTERVAL and f.has("attention.sliding_window"):
        full = _full_blocks(f, architecture, depth)
        key, value = _head_dims(f, "_swa")
        window = f.size("attention.sliding_window")
        for index in range(depth):
            if not full[index]:
                layers[index] = SlidingWindow(
                    kv_heads=heads[index], k_dim=key, v_dim=value, window_tokens=window
                )
    elif f.has("attention.sliding_window"):
        f.notes.append(f"attention.sliding_window is not used by {architecture}: left out")
    return share_tail(f, layers, full, "attention.shared_kv_layers")


def _full_blocks(f: Fields, architecture: str, depth: int) -> list[bool]:
    key = "attention.sliding_window_pattern"
    if isinstance(f.raw(key), list):
        listed = f.items(key)
        if len(listed) != depth or any(x not in (0, 1) for x in listed):
            raise f.conflict(key, f"is not a flag for each of {depth} blocks")
        return [not windowed for windowed in listed]
    return every(depth, f.size(key, WINDOW_INTERVAL[architecture]))


def _mla(f: Fields, architecture: str, depth: int) -> list[Layer]:
    """The latent form, if the file has the lengths that its engine needs for it."""
    if not f.has("attention.kv_lora_rank"):
        return _attention(f, architecture, depth)
    if not (f.has("attention.key_length_mla") and f.has("attention.value_length_mla")):
        f.notes.append("no latent lengths in the file: the cache has a row per head")
        return [_full(f, n) for n in _kv_heads(f, depth)]
    return [_latent(f)] * depth


def _latent(f: Fields) -> Mla:
    rope, key = f.size("rope.dimension_count"), f.size("attention.key_length_mla")
    if key <= rope:
        raise f.conflict("attention.key_length_mla", f"is {key}, not above the rotary part {rope}")
    return Mla(
        kv_lora_rank=f.size("attention.kv_lora_rank"),
        rope_dim=rope,
        heads=f.size("attention.head_count"),
        nope_dim=key - rope,
        v_dim=f.size("attention.value_length_mla"),
    )


def _delta(f: Fields, architecture: str, depth: int) -> list[Layer]:
    """Gated delta with full attention every so many blocks; a draft block is attention."""
    value_heads, inner = f.size("ssm.time_step_rank"), f.size("ssm.inner_size")
    if inner % value_heads:
        raise f.conflict("ssm.inner_size", f"is {inner}, not a multiple of {value_heads} heads")
    delta = GatedDelta(
        value_heads=value_heads,
        key_heads=f.size("ssm.group_count"),
        value_dim=inner // value_heads,
        key_dim=f.size("ssm.state_size"),
        conv_kernel=f.size("ssm.conv_kernel"),
    )
    main = depth - f.count("nextn_predict_layers", 0)
    full = every(depth, f.size("full_attention_interval", 4))
    attention = _full(f, max(_kv_heads(f, depth)) or 1)
    return [attention if full[i] or i >= main else delta for i in range(depth)]


def _kimi(f: Fields, architecture: str, depth: int) -> list[Layer]:
    heads, dim = f.size("attention.head_count"), f.size("kda.head_dim")
    delta = GatedDelta(
        value_heads=heads,
        key_heads=heads,
        value_dim=dim,
        key_dim=dim,
        conv_kernel=f.size("ssm.conv_kernel"),
    )
    latent = _latent(f)
    return [latent if n else delta for n in _per_block(f, "attention.head_count_kv", depth)]


def _hybrid(f: Fields, architecture: str, depth: int) -> list[Layer]:
    """A block without key heads is the architecture's other kind."""
    heads = _per_block(f, "attention.head_count_kv", depth)
    if architecture.startswith("lfm2"):
        other: Layer = ShortConv(
            hidden=f.size("embedding_length"), kernel=f.size("shortconv.l_cache")
        )
    elif architecture == "jamba":
        other = Mamba1(
            inner_dim=f.size("ssm.inner_size"),
            state_dim=f.size("ssm.state_size"),
            conv_kernel=f.size("ssm.conv_kernel"),
        )
    else:
        other = _mamba2(f)
    layers = [_full(f, n) if n else other for n in heads]
    if architecture.startswith("nemotron_h"):
        widths = _per_block(f, "feed_forward_length", depth)
        layers = [
            Stateless() if not n and width else layer
            for n, width, layer in zip(heads, widths, layers, strict=True)
        ]
    return layers


def _falcon_h1(f: Fields, architecture: str, depth: int) -> list[Layer]:
    recurrent = _mamba2(f)
    return [Parallel(parts=(_full(f, n), recurrent)) for n in _kv_heads(f, depth)]


def _mamba2(f: Fields) -> Mamba2:
    heads, inner = f.size("ssm.time_step_rank"), f.size("ssm.inner_size")
    if inner % heads:
        raise f.conflict("ssm.inner_size", f"is {inner}, not a multiple of {heads} heads")
    return Mamba2(
        heads=heads,
        head_dim=inner // heads,
        state_dim=f.size("ssm.state_size"),
        groups=f.size("ssm.group_count", 1),
        conv_kernel=f.size("ssm.conv_kernel"),
        inner_dim=inner,
    )


_READERS: tuple[tuple[frozenset[str], Callable[[Fields, str, int], list[Layer]]], ...] = (
    (_PLAIN | WINDOW_INTERVAL.keys(), _attention),
    (frozenset({"deepseek2"}), _mla),
    (frozenset(DELTA_ARCHITECTURES), _delta),
    (frozenset({"kimi-linear"}), _kimi),
    (
        frozenset({"granitehybrid", "nemotron_h", "nemotron_h_moe", "jamba", "lfm2", "lfm2moe"}),
        _hybrid,
    ),
    (frozenset({"falcon-h1"}), _falcon_h1),
)
_KNOWN = frozenset().union(*(names for names, _ in _READERS))
