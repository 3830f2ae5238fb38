"""A new trace format is one file and one line: two are written here, named, and replayed.

The files are those that CONTRIBUTING.md shows.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qwisp.cli import main
from qwisp.errors import BadTrace
from qwisp.trace import read
from tests.shown import load_shown


@pytest.fixture(params=["qwisp/trace/vllm_bench.py", "qwisp/trace/minutes.py"])
def new_format(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    module = load_shown(request.param, tmp_path)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


TRACES = {
    "vllm_bench": [
        '{"sent_at": 0.5, "input_len": 300, "generated": 20}',
        '{"sent_at": 2.25, "input_len": 500, "generated": 40}',
    ],
    "minutes": ["minute,asked,answered", "1,300,20", "3,500,40"],
}
GAPS_NS = {"vllm_bench": 1_750_000_000, "minutes": 120_000_000_000}


def test_it_is_read_listed_checked_and_replayed(
    new_format: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = new_format.__name__.removeprefix("shown_")
    data = "\n".join(TRACES[name]).encode()
    with pytest.raises(BadTrace, match="no known format"):
        read.parse_trace(data)
    monkeypatch.setattr(read, "FORMATS", [*read.FORMATS, new_format.FORMAT])  # its one line
    first, second = read.parse_trace(data).requests
    assert (first.arrival_ns, second.arrival_ns) == (0, GAPS_NS[name])
    assert [(r.prompt_tokens, r.output_tokens) for r in (first, second)] == [(300, 20), (500, 40)]
    with pytest.raises(BadTrace) as caught:
        read.parse_trace(data.replace(b"500", b"5e2"))
    assert caught.value.line == len(TRACES[name])
    with pytest.raises(BadTrace, match=re.escape(new_format.FORMAT.hint)):
        read.parse_trace(b"hello")
    path = tmp_path / "new.trace"
    path.write_bytes(data)
    asked = "replay --json --model qwen3.6-35b-a3b --machine m1-max-64gb --memory 12GiB --trace"
    assert main([*asked.split(), str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] == 2
