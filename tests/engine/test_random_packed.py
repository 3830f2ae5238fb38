import mlx.core as mx
import numpy as np
import pytest

from qwisp.engine.model.decoder import Decoder
from qwisp.engine.model.linear import linear
from qwisp.engine.model.ops import QuantizedWeight
from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import tiny_config
from qwisp.engine.weights.random_weights import random_packed_weights, weight_shapes

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def packed():
    spec = read_decoder(tiny_config("hybrid_moe"))
    return spec, random_packed_weights(spec, 0, "float32", min_rows=64)


def test_packed_weights_stand_for_matrices_of_variance_one_over_inputs(packed):
    spec, weights = packed
    shapes = dict(weight_shapes(spec))
    scales = [name for name in weights if name.endswith(".scales")]
    assert scales
    for name in scales:
        stem = name.removesuffix(".scales")
        words = weights[f"{stem}.weight"]
        full = mx.dequantize(words, weights[name], weights[f"{stem}.biases"], 64, 4)
        assert full.shape == shapes[f"{stem}.weight"]
        # A sample of thousands of uniform values: a tenth is ten times its standard error.
        assert float(mx.var(full)) * full.shape[-1] == pytest.approx(1, rel=0.1)


def test_a_decoder_takes_them_and_keeps_them_packed(packed):
    spec, weights = packed
    Decoder(spec, weights, "float32")
    name = next(name for name in weights if name.endswith("out_proj.scales"))
    stem = name.removesuffix(".scales")
    in_features = dict(weight_shapes(spec))[f"{stem}.weight"][-1]
    assert isinstance(linear(weights, stem, in_features).weight, QuantizedWeight)
    assert all(np.isfinite(np.array(w)).all() for w in weights.values() if w.dtype == mx.float32)


def test_equal_seeds_give_equal_words(packed):
    spec, weights = packed
    again = random_packed_weights(spec, 0, "float32", min_rows=64)
    assert all(mx.array_equal(weights[name], again[name]) for name in weights)
