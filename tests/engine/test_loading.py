"""Checkpoints: what is read, skipped and refused; nothing that is broken crashes or half loads."""

from __future__ import annotations

import contextlib
import json
import pickle

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwisp.engine.model.rope import Rotation
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import MORE_TINY, TINY, tiny_config
from qwisp.engine.weights.loading import load_decoder
from qwisp.engine.weights.random_weights import random_weights
from qwisp.errors import BadConfig, BadInput, QwispError

from .oracle import engine_steps
from .runs import model_of

pytestmark = pytest.mark.mlx
PROMPT = tuple(range(70))
FAMILIES = {**TINY, **MORE_TINY}


def written(folder, name="llama", dtype="float32", rename=lambda name: name, **more):
    """Save a tiny random model as a checkpoint; returns its weights."""
    spec = model_of(name).decoder.spec
    weights = dict(random_weights(spec, 0, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(name) | more))
    named = {rename(key): array for key, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), named)
    return named


def overwritten(folder, weights):
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def reference(name="llama"):
    return engine_steps(load_decoder(f"tiny:{name}"), PROMPT, 6)


def equal(a, b):
    return a.tokens == b.tokens and np.array_equal(a.logits, b.logits)


def test_a_saved_model_has_the_bits_of_the_one_in_memory(tmp_path):
    written(tmp_path)
    loaded = load_decoder(tmp_path)
    assert loaded.dtype == "float32"
    assert equal(engine_steps(loaded, PROMPT, 6), reference())
    assert not equal(engine_steps(load_decoder("tiny:llama", seed=1), PROMPT, 6), reference())


def test_a_model_takes_the_type_of_its_norms_or_the_one_asked_for(tmp_path):
    written(tmp_path, dtype="bfloat16")
    assert load_decoder(tmp_path).dtype == "bfloat16"
    assert load_decoder(tmp_path, dtype="float32").decoder.dtype == mx.float32
    with pytest.raises(BadInput, match="int8"):
        load_decoder(tmp_path, dtype="int8")


def test_other_towers_are_skipped_and_counted(tmp_path):
    weights = written(tmp_path, "hybrid")
    tower = {f"vision_tower.blocks.{i}.weight": mx.zeros((2, 2)) for i in range(5)}
    overwritten(tmp_path, weights | tower | {"mtp.norm.weight": mx.zeros((4,))})
    loaded = load_decoder(tmp_path)
    assert loaded.skipped == {"vision_tower": 5, "mtp": 1}
    assert equal(engine_steps(loaded, PROMPT, 6), reference("hybrid"))


@pytest.mark.parametrize("name", ["hybrid", "gemma3"])
def test_a_prefix_that_the_config_does_not_say_is_found(name, tmp_path):
    def other(key):
        bare = key.removeprefix("language_model.")
        return bare if key != bare else f"language_model.{key}"

    written(tmp_path, name, rename=other)
    assert equal(engine_steps(load_decoder(tmp_path), PROMPT, 6), reference(name))


def test_shards_are_read_by_their_index(tmp_path):
    weights = list(written(tmp_path).items())
    (tmp_path / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {}
    for n, name in enumerate(names):
        mx.save_safetensors(str(tmp_path / name), dict(weights[n::2]))
        where |= dict.fromkeys(dict(weights[n::2]), name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert equal(engine_steps(load_decoder(tmp_path), PROMPT, 6), reference())
    (tmp_path / names[1]).unlink()
    with pytest.raises(BadInput, match=names[1]):
        load_decoder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(BadInput, match="names"):
        load_decoder(tmp_path)
    for text in ("", "[]", "{}", '{"weight_map": 3}', "[" * 100_000):
        index.write_text(text)
        with pytest.raises(BadInput, match="no index"):
            load_decoder(tmp_path)


def test_a_weight_that_stands_in_two_files_is_refused(tmp_path):
    weights = written(tmp_path)
    mx.save_safetensors(str(tmp_path / "more.safetensors"), dict(list(weights.items())[:1]))
    with pytest.raises(BadInput, match="another file"):
        load_decoder(tmp_path)


def test_a_missing_weight_is_named(tmp_path):
    weights = written(tmp_path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    overwritten(tmp_path, weights)
    with pytest.raises(BadInput, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_decoder(tmp_path)


def test_a_wrong_shape_is_named_with_both(tmp_path):
    weights = written(tmp_path)
    weights["model.layers.0.self_attn.k_proj.weight"] = mx.zeros((64, 65))
    overwritten(tmp_path, weights)
    with pytest.raises(BadInput, match=r"k_proj\.weight has shape \(64, 65\).*\(64, 64\)"):
        load_decoder(tmp_path)


def test_a_weight_that_nobody_reads_is_refused(tmp_path):
    weights = written(tmp_path)
    weights["model.layers.0.self_attn.q_proj.bias"] = mx.zeros((128,))
    overwritten(tmp_path, weights)
    with pytest.raises(BadInput, match=r"1 weights are not known.*q_proj\.bias"):
        load_decoder(tmp_path)


def test_an_unconverted_layout_says_how_to_convert_it(tmp_path):
    weights = written(tmp_path, "hybrid")
    name = next(key for key in weights if "conv1d" in key)
    overwritten(tmp_path, weights | {name: weights[name].swapaxes(1, 2)})
    with pytest.raises(BadInput, match=r"mlx_lm\.convert"):
        load_decoder(tmp_path)
    weights = written(tmp_path, "qwen3_moe")
    name = next(key for key in weights if "switch_mlp" in key)
    one = {name.replace("switch_mlp", "experts.0"): mx.zeros((2, 2))}
    overwritten(tmp_path, {k: v for k, v in weights.items() if k != name} | one)
    with pytest.raises(BadInput, match=r"mlx_lm\.convert"):
        load_decoder(tmp_path)


def quantised(folder, bits=4, group_size=32, stated=None):
    weights = written(folder)
    stem = "model.layers.0.mlp.up_proj"
    w, scales, biases = mx.quantize(weights[f"{stem}.weight"], group_size=group_size, bits=bits)
    weights |= {f"{stem}.weight": w, f"{stem}.scales": scales, f"{stem}.biases": biases}
    overwritten(folder, weights)
    config = tiny_config("llama")
    if stated:
        config = config | {"quantization": stated}
    (folder / "config.json").write_text(json.dumps(config))
    return weights, stem


def test_bits_and_group_size_follow_from_the_shapes(tmp_path):
    _, stem = quantised(tmp_path, bits=8, group_size=64)
    kept = load_decoder(tmp_path).decoder.layers[0].ffn.up.weight
    assert (kept.bits, kept.group_size) == (8, 64)
    own = {stem: {"group_size": 64, "bits": 8}}
    quantised(tmp_path, 8, 64, {"group_size": 32, "bits": 4, **own})
    load_decoder(tmp_path)


def test_a_config_that_contradicts_the_packed_shapes_is_refused(tmp_path):
    quantised(tmp_path, group_size=32, bits=4)
    load_decoder(tmp_path)
    _, stem = quantised(tmp_path, 8, 64)
    for stated in (
        {"group_size": 64, "bits": 4},
        {"group_size": 32, "bits": 8},
        {"group_size": 64, "bits": 8, stem: False},
        {"group_size": 64, "bits": 8, stem: {"bits": 2, "group_size": 64}},
    ):
        config = tiny_config("llama") | {"quantization": stated}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(BadInput, match="config"):
            load_decoder(tmp_path)


def test_other_ways_of_quantising_are_refused_by_name(tmp_path):
    for key, asked, said in (
        ("quantization", {"mode": "mxfp4", "bits": 4, "group_size": 32}, "mxfp4"),
        ("quantization", {"bits": 4, "x": {"mode": "nvfp4"}}, "nvfp4"),
        ("quantization_config", {"quant_method": "fp8"}, "fp8"),
    ):
        written(tmp_path, **{key: asked})
        with pytest.raises(BadConfig, match=said):
            load_decoder(tmp_path)


@pytest.mark.parametrize("part", ["scales", "biases", "weight"])
def test_a_broken_packed_weight_is_named(part, tmp_path):
    weights, stem = quantised(tmp_path)
    broken = {f"{stem}.{part}": weights[f"{stem}.{part}"][:, :-1]}
    overwritten(tmp_path, weights | broken)
    with pytest.raises(BadInput, match="up_proj has weight"):
        load_decoder(tmp_path)
    del weights[f"{stem}.{part}"]
    overwritten(tmp_path, weights)
    with pytest.raises(BadInput, match="up_proj"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("family", ["mamba", "gpt_oss", "deepseek_v3", "nonsense", ""])
def test_a_family_that_is_not_run_is_refused_by_name(family, tmp_path):
    written(tmp_path, model_type=family)
    with pytest.raises(BadConfig, match=family or "model_type") as caught:
        load_decoder(tmp_path)
    assert not family or "llama" in caught.value.todo


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1]}}, "original_max_position"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_a_key_that_cannot_be_obeyed_is_named(keys, said, tmp_path):
    written(tmp_path, **keys)
    with pytest.raises(BadConfig, match=said):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("hybrid", {"attn_output_gate": False}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("gemma3", {"hidden_activation": "relu"}),
        ("gemma4", {"hidden_activation": "silu"}),
        ("gemma4", {"use_bidirectional_attention": "all"}),
    ],
)
def test_arithmetic_that_is_not_run_is_refused(name, keys):
    config = tiny_config(name)
    mixed = config | {"text_config": config["text_config"] | keys} if name == "hybrid" else {}
    with pytest.raises(BadConfig, match=next(iter(keys))):
        read_decoder(mixed or config | keys)


def test_pickled_weights_and_remote_code_are_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    config = tiny_config("llama") | {"auto_map": {"AutoModel": "bomb.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "bomb.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadInput, match="no safetensors"):
        load_decoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadInput):
        load_decoder(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_file_cut_anywhere_is_an_error(tmp_path):
    written(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 7, 8, 100, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(QwispError):
            load_decoder(tmp_path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_of_a_header_load_or_are_refused(tmp_path, data):
    if not (tmp_path / "config.json").exists():
        written(tmp_path)
        (tmp_path / "whole").write_bytes((tmp_path / "model.safetensors").read_bytes())
    whole = bytearray((tmp_path / "whole").read_bytes())
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "model.safetensors").write_bytes(whole)
    with contextlib.suppress(QwispError):  # anything else would fail the test
        load_decoder(tmp_path)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**40, 1.5, float("nan"), float("inf"), "x", "", "yarn", "full"]),
    st.lists(st.sampled_from([1, "full_attention", None]), max_size=3),
    st.dictionaries(
        st.sampled_from(["type", "rope_type", "factor", "mscale", "long_factor", "rope_theta"]),
        st.sampled_from(["yarn", "llama3", "longrope", "proportional", 2, 0, "q", ["a"]]),
    ),
)
KEYS = sorted(
    {key for config in FAMILIES.values() for key in (*config, *config.get("text_config", ()))}
    | {"rope_scaling", "attention_bias", "hidden_act", "mlp_bias", "quantization"}
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), ODD, max_size=3))
def test_any_config_is_read_or_refused(name, keys):
    config = FAMILIES[name]
    inner = "text_config" in config and "text_config" not in keys
    mixed = config | {"text_config": config["text_config"] | keys} if inner else config | keys
    with contextlib.suppress(QwispError):  # anything else would fail the test
        spec = read_decoder(mixed)
        for block in spec.blocks[:4]:
            if block.attention is not None and block.attention.rope.dims < 10_000:
                Rotation(block.attention.rope)
