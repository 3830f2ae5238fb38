"""`org/name` is found in the local Hugging Face cache, or says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from qwisp.engine.weights.loading import load_decoder
from qwisp.errors import BadInput

from .oracle import engine_steps
from .test_loading import PROMPT, equal, reference, written

pytestmark = pytest.mark.mlx


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(cache, name="org/mine", revision="a" * 40):
    return cache / f"models--{name.replace('/', '--')}" / "snapshots" / revision


def point_main_to(text, cache, name="org/mine"):
    refs = snapshot(cache, name).parents[1] / "refs"
    refs.mkdir(parents=True, exist_ok=True)
    (refs / "main").write_text(text)


def test_a_name_is_resolved_in_the_local_cache(cache):
    written(snapshot(cache))
    with pytest.raises(BadInput, match="no complete download"):
        load_decoder("org/mine")  # nothing says that this download was ever finished
    point_main_to("a" * 40, cache)
    assert load_decoder("org/mine").name == "org/mine"
    assert equal(engine_steps(load_decoder("org/mine"), PROMPT, 6), reference())
    written(snapshot(cache, revision="b" * 40), "gemma3")
    assert load_decoder("org/mine").spec.family != "gemma3_text"
    point_main_to("b" * 40, cache)
    assert load_decoder("org/mine").spec.family == "gemma3_text"
    point_main_to("c" * 40, cache)
    with pytest.raises(BadInput, match="no complete download"):
        load_decoder("org/mine")


def test_a_branch_never_points_out_of_the_cache(cache, tmp_path):
    written(tmp_path / "elsewhere")
    snapshot(cache).mkdir(parents=True)
    point_main_to("../../elsewhere", cache)
    with pytest.raises(BadInput, match="no complete download"):
        load_decoder("org/mine")


def test_a_name_that_is_not_there_says_how_to_get_it(cache):
    with pytest.raises(BadInput) as caught:
        load_decoder("org/absent")
    assert "hf download org/absent" in caught.value.todo
    assert "not in the local cache" in caught.value.what
    snapshot(cache).mkdir(parents=True)
    point_main_to("a" * 40, cache)
    with pytest.raises(BadInput, match="lacks"):
        load_decoder("org/mine")
    for text in ("", "nowhere", "a/b/c", "../x/y", "a\0b", "x" * 5000, "a--b/c", "-a/b.git"):
        with pytest.raises(BadInput):
            load_decoder(text)


def test_the_cache_is_where_the_hub_tools_have_it():
    code = "from qwisp.engine.weights.hub_cache import cache_folder; print(cache_folder())"
    for env, folder in (({"HF_HUB_CACHE": "/a"}, "/a"), ({"HF_HOME": "/b"}, "/b/hub")):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        said = subprocess.run(
            [sys.executable, "-c", code], env=clean | env, capture_output=True, text=True
        )
        assert said.stdout.strip() == folder
