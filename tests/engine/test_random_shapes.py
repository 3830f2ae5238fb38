"""`random:CONFIG` runs the shape of any config with random weights, packed where it says so."""

from __future__ import annotations

import json

import mlx.core as mx
import pytest

from qwisp.engine.proof.certificate_runs import CHUNK_TOKENS
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import tiny_config
from qwisp.engine.weights.loading import load_decoder
from qwisp.errors import BadConfig
from qwisp.spec.data_files import data_path
from qwisp.spec.layers import SlidingWindow

pytestmark = pytest.mark.mlx

SHAPES = sorted(data_path("shapes").glob("*.json"))
WIDE = {**tiny_config("llama"), "hidden_size": 64, "intermediate_size": 512}


def packed(model) -> set[str]:
    return {str(array.dtype) for array in model.decoder.arrays} & {"mlx.core.uint32"}


def test_a_config_is_run_in_its_own_type_and_bits(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**WIDE, "dtype": "float16"}))
    plain = load_decoder(f"random:{tmp_path}")
    assert plain.name == f"random:{tmp_path.name}"
    assert plain.dtype == "float16"
    assert not packed(plain)
    assert load_decoder(f"random:{path}", dtype="float32").dtype == "float32"
    (tmp_path / "four.json").write_text(
        json.dumps({**WIDE, "quantization": {"bits": 4, "group_size": 32}})
    )
    four = load_decoder(f"random:{tmp_path / 'four.json'}")
    assert four.name == "random:four"
    assert four.dtype == "bfloat16"
    assert packed(four)
    up = four.decoder.layers[0].ffn.up.weight
    assert up.weight.shape == (512, 64 * 4 // 32)
    assert up.scales.shape == (512, 64 // 32)


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WIDE))
    one, same, other = (load_decoder(f"random:{path}", seed=n).decoder.arrays for n in (1, 1, 2))
    assert all(mx.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(mx.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_bundled_model_is_a_config_beside_its_source(tmp_path):
    path = tmp_path / "bundled.json"
    path.write_text(json.dumps({"source": "written here", "config": WIDE}))
    assert load_decoder(f"random:{path}").decoder.spec.hidden == 64


def test_what_is_no_config_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(BadConfig, match="holds no JSON object"):
        load_decoder(f"random:{path}")


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_bundled_shape_is_one_the_engine_runs(path):
    config = json.loads(path.read_text())
    spec = read_decoder(config)
    windows = {b.layer.window_tokens for b in spec.blocks if isinstance(b.layer, SlidingWindow)}
    expected = {"sliding_300": {300}, "sliding_1024": {1024}}.get(path.stem, set())
    assert windows == expected
    assert all(window + CHUNK_TOKENS < 9000 for window in windows)


def test_the_shapes_are_the_kinds_they_are_called():
    names = {path.stem for path in SHAPES}
    assert names == {
        "dense_gqa",
        "hybrid_moe_4bit",
        "one_key_head",
        "sliding_300",
        "sliding_1024",
    }
    one = read_decoder(json.loads(data_path("shapes", "one_key_head.json").read_text()))
    assert {(b.layer.kv_heads, b.attention.heads) for b in one.blocks} == {(1, 6)}
