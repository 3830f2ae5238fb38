"""mlx-lm's own caches, filled by their own `update_and_fetch`, against the dialect: same bytes.

A tiny model of each family runs five tokens, so that every cache takes its real head sizes and
number types; fresh caches of those sizes are then filled to 4K, 16K and 64K rows in chunks.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from qwisp.memory.engines.mlx_lm import MlxLm, grown_rows, rotating_rows
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.model import ModelSpec

mx = pytest.importorskip("mlx.core")
mlx_cache = pytest.importorskip("mlx_lm.models.cache")
pytestmark = pytest.mark.mlx

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
NOT_SHIPPED = {"bamba", "ministral"}


@pytest.fixture(autouse=True)
def half_precision_experts(monkeypatch):
    """MLX on CPU multiplies gathered experts in fp32 only; the caches do not see the difference."""
    gather_mm = mx.gather_mm

    def widened(a, b, *args, **kwargs):
        return gather_mm(a.astype(mx.float32), b.astype(mx.float32), *args, **kwargs).astype(
            a.dtype
        )

    monkeypatch.setattr(mx, "gather_mm", widened)


def _module_name(config):
    from mlx_lm.utils import MODEL_REMAPPING

    family = MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    return f"mlx_lm.models.{family}"


def _model(config):
    from mlx.utils import tree_map_with_path

    module = importlib.import_module(_module_name(config))
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    keep = getattr(model, "cast_predicate", lambda path: True)

    def cast(path, value):
        is_float = mx.issubdtype(value.dtype, mx.floating)
        return value.astype(mx.float16) if is_float and keep(path) else value

    model.update(tree_map_with_path(cast, model.parameters()))
    return model


def _leaves(caches):
    for cache in caches:
        if isinstance(cache, mlx_cache.CacheList):
            yield from _leaves(cache.caches)
        else:
            yield cache


def _filled(seen, tokens, chunk, decoded):
    """Return a fresh cache of the same kind with `tokens` rows; states have no rows to add."""
    if isinstance(seen, mlx_cache.ArraysCache):
        return seen
    if isinstance(seen, mlx_cache.RotatingKVCache):
        fresh = type(seen)(max_size=seen.max_size, keep=seen.keep)
    else:
        fresh = type(seen)()
    prompt = tokens - decoded
    sizes = [chunk] * (prompt // chunk) + [prompt % chunk] * (prompt % chunk > 0) + [1] * decoded
    for size in sizes:
        rows = [
            mx.zeros((*x.shape[:2], size, x.shape[3]), x.dtype) for x in (seen.keys, seen.values)
        ]
        fresh.update_and_fetch(*rows)
        mx.eval(fresh.keys, fresh.values)
    return fresh


def test_only_the_families_named_here_are_missing_from_mlx_lm():
    absent = {
        name
        for name in NAMES
        if not importlib.util.find_spec(
            _module_name(json.loads((CONFIGS / f"{name}.json").read_text()))
        )
    }
    assert absent == NOT_SHIPPED


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_SHIPPED))
def test_dialect_predicts_every_byte_of_real_caches(name):
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    model = _model(config)
    caches = mlx_cache.make_prompt_cache(model)
    model(mx.array([[1, 2, 3, 4, 5]]), cache=caches)
    seen = list(_leaves(caches))
    mx.eval([x.cache if isinstance(x, mlx_cache.ArraysCache) else [x.keys, x.values] for x in seen])
    spec = replace(ModelSpec.from_config(config), element_bytes=2)
    assert len(seen) == len(spec.caches)
    for tokens, chunk, decoded in ((4096, 2048, False), (16384, 700, True), (65536, 2048, True)):
        real = sum(_filled(x, tokens, chunk, decoded).nbytes for x in seen)
        dialect = MlxLm(chunk_tokens=chunk, decoded=decoded)
        assert cache_bytes(spec, tokens, dialect).total_bytes == real, (tokens, chunk)


def _one_row(cache_class, tokens, chunk, decoded, **kwargs):
    seen = cache_class(**kwargs)
    seen.update_and_fetch(mx.zeros((1, 1, 1, 1)), mx.zeros((1, 1, 1, 1)))
    return _filled(seen, tokens, chunk, decoded).keys.shape[2]


CUTS = [(1, 1), (2, 1), (7, 3), (300, 100), (513, 256), (600, 384), (1153, 384), (777, 1)]


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize(("tokens", "chunk"), CUTS)
def test_row_rules_follow_the_caches_for_odd_cuts(tokens, chunk, decoded):
    tokens += decoded
    grown = _one_row(mlx_cache.KVCache, tokens, chunk, decoded)
    assert grown_rows(tokens, chunk, decoded=decoded) == grown
    for window in (2, 64, 300, 512):
        rotated = _one_row(mlx_cache.RotatingKVCache, tokens, chunk, decoded, max_size=window)
        assert rotating_rows(tokens, window, chunk, decoded=decoded) == rotated, window


def test_skipped_periods_agree_with_counting_every_chunk():
    for chunk in (1, 3, 100, 255, 256, 384, 700):
        used = rows = 0
        for _ in range(3000):
            if used + chunk > rows:
                kept = used if used % 256 else rows
                rows = kept + -(-chunk // 256) * 256
            used += chunk
        assert grown_rows(3000 * chunk, chunk) == rows
