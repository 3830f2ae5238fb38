"""Every option of another engine's command line means here what it means there."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qwisp.cli.fit import command
from qwisp.errors import BadInput
from qwisp.memory.dialect import Dialect
from qwisp.memory.dialects import DIALECTS
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.catalog import load_model
from qwisp.units import GIB

GEMMA = load_model("gemma-4-26b-a4b")


def document(*words: str) -> dict:
    asked = ("--json", "--model", GEMMA.name, "--weights", "1GiB", *words)
    return json.loads(CliRunner().invoke(command, asked, catch_exceptions=False).stdout)


def cache(*words: str) -> int:
    (term,) = [t["num_bytes"] for t in document(*words)["terms"] if t["term"] == "cache"]
    return term


@pytest.mark.parametrize(
    ("words", "dialect"),
    [
        ("llama.cpp -c 8192", LlamaCpp()),
        ("llama.cpp -c 8192 -ctk q8_0", LlamaCpp(k_type="q8_0")),
        ("llama.cpp -c 8192 -ctv q4_0", LlamaCpp(v_type="q4_0")),
        ("llama.cpp -c 8192 -np 2 -kvu", LlamaCpp(n_seq=2, unified=True)),
        ("llama.cpp -c 8192 --swa-full", LlamaCpp(swa_full=True)),
        ("llama.cpp -c 8192 -fa on", LlamaCpp()),
        ("llama.cpp -c 8192 -fa auto", LlamaCpp()),
        ("llama.cpp -c 8192 -fa off", LlamaCpp(flash_attn=False)),
        ("llama.cpp -c 8192 -ub 64", LlamaCpp(ubatch_tokens=64)),
        ("vllm --max-model-len 8192 --kv-cache-dtype auto", Vllm()),
        ("vllm --max-model-len 8192 --kv-cache-dtype fp8", Vllm(k_type="fp8", v_type="fp8")),
        ("vllm --max-model-len 8192 -tp 2", Vllm(tensor_parallel=2)),
        ("sglang --max-model-len 8192 -tp 4", Sglang(tensor_parallel=4)),
    ],
)
def test_an_option_sets_what_its_engine_sets(words: str, dialect: Dialect) -> None:
    expected = cache_bytes(GEMMA, 8192, dialect).total_bytes
    found = cache("--machine", "m1-max-64gb", "--engine", *words.split())
    assert found == expected
    changed = dialect not in (LlamaCpp(), Vllm())
    plain = {"llama.cpp": LlamaCpp(), "vllm": Vllm(), "sglang": Sglang()}[dialect.name]
    assert (expected != cache_bytes(GEMMA, 8192, plain).total_bytes) == changed


def test_slots_split_a_context_unless_they_share_its_cells() -> None:
    own = ("--machine", "m1-max-64gb", "--engine", "llama.cpp", "-c", "32768", "-np", "4")
    assert document(*own)["context_tokens"] == 8192
    assert document(*own, "-kvu")["context_tokens"] == 32768


@pytest.mark.parametrize(
    ("words", "usable"),
    [
        ("vllm --vram 20GiB", 18 * GIB),  # its default is 0.9
        ("vllm --vram 20GiB --gpu-memory-utilization 1", 20 * GIB),
        ("vllm --vram 20GiB --gpu-memory-utilization 0.5", 10 * GIB),
        ("vllm --vram 20GiB --memory 19GiB", 19 * GIB),
        ("sglang --vram 20GiB", 20 * GIB),
        ("vllm --machine m1-max-64gb", int(64 * GIB * 0.7)),  # the rule for unified memory
    ],
)
def test_a_share_is_of_the_memory_of_a_device(words: str, usable: int) -> None:
    assert document("--engine", *words.split())["usable_bytes"] == usable


@pytest.mark.parametrize("share", ["0", "-0.1", "1.01"])
def test_a_share_is_above_nothing_and_at_most_all(share: str) -> None:
    with pytest.raises(BadInput, match="give a share like"):
        document("--engine", "vllm", "--vram", "20GiB", "--gpu-memory-utilization", share)


def test_the_option_of_another_engine_is_named_with_its_engine() -> None:
    with pytest.raises(BadInput, match=r"--flash-attn is an option of llama\.cpp, not of mlx-lm"):
        document("--engine", "mlx-lm", "-fa", "off")
    with pytest.raises(BadInput, match="of vllm and sglang, not of qwisp"):
        document("-tp", "2")


def test_no_two_engines_spell_an_option_differently() -> None:
    """One flag is one spelling, so that the help says what it does wherever it is read."""
    seen: dict[str, object] = {}
    for kind in DIALECTS.values():
        for spelling in kind.spellings:
            for flag in spelling.flags:
                assert seen.setdefault(flag, spelling) == spelling
