"""GGUF headers: layers as the engine would read them, and no harm from damaged files."""

from __future__ import annotations

import random
import struct

import pytest

from qwisp.errors import BadConfig, BadInput, QwispError
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.catalog import load_model
from qwisp.spec.gguf import read_gguf_metadata
from qwisp.spec.gguf_model import spec_from_gguf
from qwisp.units import MIB


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def encoded(value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case [bool(), *_]:
            return struct.pack(f"<IIQ{len(value)}?", 9, 7, len(value), *value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def header(architecture: str, **keys) -> bytes:
    pairs = {"general.architecture": architecture, "tokenizer.ggml.tokens": ["a", "bc", ""]}
    pairs |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    body = b"".join(text(key) + encoded(value) for key, value in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


LLAMA = {
    "block_count": 4,
    "context_length": 8192,
    "embedding_length": 64,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
    "rope__freq_base": 1e4,
}
DELTA = {
    **LLAMA,
    "attention__key_length": 256,
    "attention__value_length": 256,
    "ssm__conv_kernel": 4,
    "ssm__state_size": 128,
    "ssm__group_count": 16,
    "ssm__time_step_rank": 32,
    "ssm__inner_size": 4096,
    "full_attention_interval": 4,
}
MLA = {
    **LLAMA,
    "attention__head_count": 128,
    "attention__head_count_kv": 128,
    "attention__key_length": 192,
    "attention__value_length": 128,
    "attention__kv_lora_rank": 512,
    "rope__dimension_count": 64,
    "block_count": 61,
}
MAMBA = {"ssm__conv_kernel": 4, "ssm__state_size": 128, "ssm__group_count": 1}
MAMBA |= {"ssm__time_step_rank": 48, "ssm__inner_size": 3072}


@pytest.fixture
def write(tmp_path):
    def write(architecture, **keys):
        path = tmp_path / "model.gguf"
        path.write_bytes(header(architecture, **keys))
        return path

    return write


def mib(path, context, dialect=None):
    return cache_bytes(spec_from_gguf(path), context, dialect or LlamaCpp()).total_bytes / MIB


def test_plain_grouped_attention(write):
    spec = load_model(write("llama", **LLAMA))
    assert [(x.kv_heads, x.k_dim) for x in spec.layers] == [(2, 16)] * 4
    assert (spec.context_max_tokens, spec.hidden, spec.query_heads) == (8192, 64, 4)
    assert spec.name == "model"


def test_kv_heads_per_block_decide_what_a_block_is(write):
    heads = [0, 0, 8, 0]
    path = write(
        "lfm2",
        **{
            **LLAMA,
            "attention__head_count_kv": heads,
            "attention__head_count": 32,
            "embedding_length": 2048,
            "shortconv__l_cache": 3,
        },
    )
    kinds = [type(layer).__name__ for layer in spec_from_gguf(path).layers]
    assert kinds == ["ShortConv", "ShortConv", "FullAttention", "ShortConv"]


def test_gated_delta_state_is_what_the_loader_prints(write):
    path = write("qwen35moe", **{**DELTA, "block_count": 40})
    footprint = cache_bytes(spec_from_gguf(path), 4096, LlamaCpp(n_seq=4))
    assert footprint.fixed_bytes == 251.25 * MIB
    assert footprint.bytes_per_token == 20480


def test_draft_blocks_stand_beside_the_model(write):
    spec = spec_from_gguf(write("qwen35", **{**DELTA, "block_count": 5, "nextn_predict_layers": 1}))
    assert len(spec.layers) == 4
    assert [type(x).__name__ for x in spec.draft_layers] == ["FullAttention"]


def test_the_file_decides_whether_the_cache_is_latent(write):
    assert mib(write("deepseek2", **MLA), 8192) == 39040
    with_lengths = {**MLA, "attention__key_length_mla": 192, "attention__value_length_mla": 128}
    assert mib(write("deepseek2", **with_lengths), 8192) == 549


def test_windows_by_interval_by_list_and_not_at_all(write):
    keys = {**LLAMA, "attention__sliding_window": 512}
    kinds = [type(x).__name__ for x in spec_from_gguf(write("gpt-oss", **keys)).layers]
    assert kinds == ["SlidingWindow", "FullAttention"] * 2
    listed = {**keys, "attention__sliding_window_pattern": [True, True, True, False]}
    listed |= {"attention__key_length_swa": 8, "attention__value_length_swa": 8}
    spec = spec_from_gguf(write("gemma4", **listed))
    assert [x.k_dim for x in spec.layers] == [8, 8, 8, 16]
    spec = spec_from_gguf(write("phi3", **keys))
    assert {type(x).__name__ for x in spec.layers} == {"FullAttention"}
    assert "left out" in spec.notes[0]


def test_hybrids_of_mamba(write):
    granite = {**LLAMA, **MAMBA, "block_count": 40}
    granite["attention__head_count_kv"] = [4 if i in (5, 15, 25, 35) else 0 for i in range(40)]
    footprint = cache_bytes(spec_from_gguf(write("granitehybrid", **granite)), 256, LlamaCpp())
    assert footprint.fixed_bytes == 36 * (3 * 3328 + 3072 * 128) * 4
    nemotron = {**LLAMA, **MAMBA, "attention__head_count_kv": [0, 0, 2, 0]}
    nemotron["feed_forward_length"] = [0, 64, 0, 0]
    kinds = [type(x).__name__ for x in spec_from_gguf(write("nemotron_h", **nemotron)).layers]
    assert kinds == ["Mamba2", "Stateless", "FullAttention", "Mamba2"]


def test_an_unknown_architecture_falls_back_only_if_plain(write):
    assert spec_from_gguf(write("newarch", **LLAMA)).generic
    with pytest.raises(BadConfig, match=r"ssm\.conv_kernel"):
        spec_from_gguf(write("newarch", **LLAMA, **MAMBA))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"block_count": 0}, "llama.block_count"),
        ({"block_count": 10**6}, "llama.block_count"),
        ({"attention__head_count_kv": 3}, "llama.attention.head_count_kv"),
        ({"attention__head_count_kv": [2, 2]}, "llama.attention.head_count_kv"),
        ({"attention__head_count_kv": [2, 2, 0, 2]}, "llama.attention.head_count_kv"),
        ({"embedding_length": 63}, "llama.attention.head_count"),
        ({"nextn_predict_layers": 4}, "llama.nextn_predict_layers"),
        ({"context_length": "long"}, "llama.context_length"),
    ],
)
def test_contradictions_name_their_key(write, change, key):
    with pytest.raises(BadConfig) as caught:
        spec_from_gguf(write("llama", **{**LLAMA, **change}))
    assert caught.value.key == key


def test_every_truncation_is_refused(tmp_path):
    whole = header("llama", **LLAMA)
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(QwispError):
            read_gguf_metadata(path)


def test_damaged_headers_raise_only_our_errors(tmp_path):
    rng = random.Random(7)
    path = tmp_path / "bad.gguf"
    originals = [header("llama", **LLAMA), header("qwen35", **DELTA), header("deepseek2", **MLA)]
    refused = 0
    for _ in range(800):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 4, 9, 127, 255, rng.randrange(256)])
        path.write_bytes(data)
        try:
            spec_from_gguf(path)
        except QwispError:
            refused += 1
    assert 130 < refused < 800


@pytest.mark.parametrize("count", [2**63, 2**40, 2**31])
def test_a_list_longer_than_the_file_is_not_believed(tmp_path, count):
    path = tmp_path / "long.gguf"
    body = text("x") + struct.pack("<IIQ", 9, 8, count)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    with pytest.raises(BadConfig, match="are left"):
        read_gguf_metadata(path)


def test_other_files_are_two_lines(tmp_path):
    path = tmp_path / "other.gguf"
    for data in (b"", b"GG", b"GGML" + b"\0" * 40, b"GGUF" + struct.pack("<IQQ", 1, 0, 0)):
        path.write_bytes(data)
        with pytest.raises(BadInput) as caught:
            load_model(path)
        assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(BadInput):
        load_model(tmp_path / "none.gguf")
