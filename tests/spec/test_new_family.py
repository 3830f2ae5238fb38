"""A new model family is one file and one line, for its memory and for the lane engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.cli import main
from qwisp.spec import families
from qwisp.spec.layers import FullAttention, SlidingWindow
from qwisp.spec.model import ModelSpec
from tests.shown import load_shown, shown

CONFIG = {
    "model_type": "tandem",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "sliding_window": 40,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the config of a family that was added by its file and its line."""
    (tmp_path / "tandem.py").write_text(shown("qwisp/spec/families/tandem.py"))
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    monkeypatch.setitem(families.FAMILIES, "tandem", "tandem")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_its_layers_are_read_and_its_memory_counted(config, capsys) -> None:
    spec = ModelSpec.from_config(config)
    assert [type(layer) for layer in spec.layers] == [FullAttention, SlidingWindow] * 2
    assert not spec.generic
    words = ["--engine", "fieldfare", "--chunk", "8", "--context", "1000", "--weights", "1MiB"]
    asked = ["fit", "--model", str(config), "--machine", "m4-16gb", "--json", *words]
    assert main(asked) in (0, 1)
    terms = json.loads(capsys.readouterr().out)["terms"]
    (cache,) = [term["num_bytes"] for term in terms if term["term"] == "cache"]
    # 2 layers of 1,000 rows, 2 rings of 40 + 8; a row has 2 heads of 16 keys and 16 values, fp32.
    assert cache == (2 * 1000 + 2 * 48) * 2 * 2 * 16 * 4


@pytest.mark.mlx
def test_the_lane_engine_runs_it(config, tmp_path, monkeypatch, capsys) -> None:
    from qwisp.engine.spec.families import READERS

    asked = ["generate", "--model", f"random:{config}", "--tokens", "5,9,7", "--max-new", "4"]
    assert main(asked) == 2
    assert "family tandem is not run by the lane engine" in capsys.readouterr().err
    engine = tmp_path / "engine"
    engine.mkdir()
    module = load_shown("qwisp/engine/spec/families/tandem.py", engine)
    monkeypatch.setitem(READERS, "tandem", module.read_tandem)
    assert main(asked) == 0
    assert "3 prompt and 4 new tokens" in capsys.readouterr().err
