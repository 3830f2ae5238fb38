"""`org/name` is found in the local Hugging Face cache, or says how to get it."""

from __future__ import annotations

import pytest

from qwisp.engine.hub_cache import cache_folder
from qwisp.engine.loading import load_model
from qwisp.errors import BadInput

from .oracle import engine_steps
from .test_loading import PROMPT, equal, reference, written

pytestmark = pytest.mark.mlx


def snapshot(cache, name="org/mine", revision="a" * 40):
    return cache / f"models--{name.replace('/', '--')}" / "snapshots" / revision


def test_a_name_is_resolved_in_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    written(snapshot(tmp_path))
    assert load_model("org/mine").name == "org/mine"
    assert equal(engine_steps(load_model("org/mine"), PROMPT, 6), reference())
    written(snapshot(tmp_path, revision="b" * 40), "gemma3")
    with pytest.raises(BadInput, match="no complete download"):
        load_model("org/mine")  # two of them, and nothing says which
    refs = snapshot(tmp_path).parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("b" * 40)
    assert load_model("org/mine").spec.family == "gemma3_text"
    (refs / "main").write_text("../../../elsewhere")
    with pytest.raises(BadInput, match="no complete download"):
        load_model("org/mine")


def test_a_name_that_is_not_there_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BadInput) as caught:
        load_model("org/absent")
    assert "hf download org/absent" in caught.value.todo
    snapshot(tmp_path).mkdir(parents=True)
    with pytest.raises(BadInput, match="lacks"):
        load_model("org/mine")
    for text in ("", "nowhere", "a/b/c", "../x/y", "a\0b", "x" * 5000):
        with pytest.raises(BadInput):
            load_model(text)


def test_the_cache_is_where_the_hub_tools_have_it():
    assert str(cache_folder({"HF_HUB_CACHE": "/a"})) == "/a"
    assert str(cache_folder({"HF_HOME": "/b"})) == "/b/hub"
    assert str(cache_folder({"XDG_CACHE_HOME": "/c"})) == "/c/huggingface/hub"
