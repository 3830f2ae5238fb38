"""Nemotron-H: a pattern of one letter per block: Mamba-2, attention, or no memory at all."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Layer, Mamba2, Stateless

_LETTERS = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "moe": "E",
    "mlp": "-",
}


def read(f: Fields) -> Blocks:
    """Return the blocks of `hybrid_override_pattern` (or of a list of types)."""
    key, pattern = _pattern(f)
    f.check_depth(len(pattern), key)
    if f.has("num_hidden_layers") and f.size("num_hidden_layers") != len(pattern):
        raise f.conflict(
            key, f"has {len(pattern)} entries for {f.size('num_hidden_layers')} layers"
        )
    heads = read_heads(_with_head_dim(f))
    kinds: dict[str, Layer] = {"*": heads.full(), "-": Stateless(), "E": Stateless()}
    if "M" in pattern:
        kinds["M"] = _mamba2(f)
    return Blocks(layers=[kinds[letter] for letter in pattern])


def _pattern(f: Fields) -> tuple[str, list[str]]:
    """Return the key the pattern was found under, and a letter per block."""
    for key in ("layers_block_type", "layer_types"):
        if f.has(key) and not f.has("hybrid_override_pattern"):
            words = [_LETTERS.get(word) if isinstance(word, str) else None for word in f.items(key)]
            break
    else:
        key = "hybrid_override_pattern"
        raw = f.raw(key)
        words = list(raw) if isinstance(raw, str) else f.items(key)
    if not words or any(word not in ("M", "*", "-", "E") for word in words):
        raise f.conflict(key, "is not a pattern of Mamba, attention and feed-forward blocks")
    return key, words


def _with_head_dim(f: Fields) -> Fields:
    """Older configs write attention_head_dim."""
    if f.has("head_dim") or not f.has("attention_head_dim"):
        return f
    return Fields({**f.values, "head_dim": f.size("attention_head_dim")}, f.prefix, f.notes)


def _mamba2(f: Fields) -> Mamba2:
    heads, head_dim = f.size("mamba_num_heads"), f.size("mamba_head_dim")
    groups = f.size("n_groups", 1)
    if heads % groups:
        raise f.conflict("n_groups", f"is {groups}, which does not divide {heads} heads")
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        state_dim=f.size("ssm_state_size"),
        groups=groups,
        conv_kernel=f.size("conv_kernel"),
        inner_dim=heads * head_dim,
    )
