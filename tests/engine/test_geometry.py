"""No size in a config ends the process, takes absurd memory or gives a traceback.

Every key that the engine reads, set to every odd value, family by family: it is refused in two
lines, or it runs and gives what mlx-lm gives.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from qwisp.engine.spec.families import read_decoder
from qwisp.engine.weights.weight_shapes import weight_shapes
from qwisp.errors import BadConfig, QwispError
from qwisp.spec.fields import Fields

from . import geometry
from .geometry import ABSENT, FAMILIES, VALUES, Case, Verdict, changed, keys_of, verdicts

pytestmark = pytest.mark.mlx

MOST_MIB = 1500  # MLX, mlx-lm and the largest weights tried here, not a byte for an absurd size
INTERVAL = ("full_attention_interval", "num_hidden_layers", "layer_types", "sliding_window_pattern")


def is_explained(verdict: Verdict) -> bool:
    """Where the engine runs and the oracle cannot be asked."""
    case, key = verdict.case, verdict.case.key.rpartition("/")[2]
    if verdict.how != "runs, the oracle does not":
        return False
    # Null and absent stand for the family's published default, which mlx-lm wants spelled out; and
    # it looks for a layer of each kind, where this engine runs one kind alone.
    # Its random weights do not come in size 0: a shared expert of no rows adds nothing.
    is_empty = key == "shared_expert_intermediate_size" and case.value == 0
    return case.value in (None, ABSENT) or key in INTERVAL or is_empty


def cases(family: str) -> list[Case]:
    return [Case(family, key, value) for key in keys_of(family) for value in VALUES]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_is_read_or_refused_in_two_lines(family):
    """All of them, without weights."""
    read = 0
    for case in cases(family):
        refusal = ""
        try:
            spec = read_decoder(changed(case))
            assert sum(math.prod(shape) for _, shape in weight_shapes(spec)) > 0
            read += 1
        except QwispError as error:
            refusal = str(error)
        assert not refusal or len(refusal.splitlines()) == 2, case
        assert len(refusal) < 600, case
    assert 0 < read < len(cases(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_is_read_is_among_those_tried(family, monkeypatch):
    """But where an object stands, and what other families alone have."""
    asked: set[str] = set()
    raw, integer = Fields.raw, Fields._integer

    def seen(self: Fields, key: str) -> Any:
        asked.add(key)
        return raw(self, key)

    def counted(self: Fields, key: str, *rest: Any) -> int:
        asked.add(key)
        return integer(self, key, *rest)

    monkeypatch.setattr(Fields, "raw", seen)
    monkeypatch.setattr(Fields, "_integer", counted)
    read_decoder(FAMILIES[family])
    tried = {key.rpartition("/")[2] for name in FAMILIES for key in keys_of(name)}
    assert asked - tried <= OTHERS
    assert len(asked) > 8


OTHERS = {
    "use_bidirectional_attention",
    "hidden_act",
    "hidden_activation",
    "attn_output_gate",
}
"""Words, not sizes: each is refused by name where it is not the one known."""

NOTED = [
    ("hybrid", "text_config/linear_conv_kernel_dim", 1, "refused"),
    ("hybrid", "text_config/linear_conv_kernel_dim", 2, "equal"),
    ("hybrid", "text_config/linear_conv_kernel_dim", 33, "equal"),
    ("hybrid", "text_config/rope_parameters/partial_rotary_factor", 1e-9, "refused"),
    ("hybrid", "text_config/rope_parameters/rope_theta", 10**400, "refused"),
    ("hybrid", "text_config/linear_value_head_dim", 7, "equal"),
    ("hybrid", "text_config/vocab_size", 2**31, "refused"),
    ("hybrid", "text_config/hidden_size", 2**20 + 1, "refused"),
    ("qwen3_next", "linear_value_head_dim", 2**31, "refused"),
    ("llama yarn", "rope_theta", 1, "refused"),
    ("llama yarn", "head_dim", 31, "refused"),
    ("llama yarn", "head_dim", 2, "equal"),
    ("llama yarn", "rms_norm_eps", 1e300, "refused"),
    ("llama yarn", "tie_word_embeddings", None, "refused"),
]


def test_the_noted_sizes_are_refused_or_run_as_the_oracle_does():
    found = list(verdicts(Case(*row[:3]) for row in NOTED))
    for (*_, how), verdict in zip(NOTED, found, strict=True):
        assert verdict.how == how, verdict
        assert verdict.peak_mib < MOST_MIB


def test_a_death_is_told_with_its_case(monkeypatch):
    """The yardstick can tell: a process that is gone after a case is that case's verdict."""
    start = geometry._start
    dies = [sys.executable, "-c", "import os; os.read(0, 1); os.abort()"]
    monkeypatch.setattr(geometry, "_start", lambda family: start(family, dies))
    for verdict in verdicts([Case("llama", "head_dim", n) for n in (1, 2)]):
        assert verdict.how == "the process died with -6"
        assert not verdict.is_good


@pytest.mark.parametrize(
    ("family", "key", "value", "what"),
    [
        ("hybrid", "text_config/linear_conv_kernel_dim", 1, "linear_conv_kernel_dim is 1"),
        ("gemma4", "vocab_size", 257, "vocab_size_per_layer_input is 256, vocab_size 257"),
        ("llama", "head_dim", 7, "head_dim turns 7 of 7 elements"),
        ("qwen3_next", "partial_rotary_factor", 0.1, "partial_rotary_factor turns 3 of 32"),
        (
            "gemma4 proportional",
            "rope_parameters/full_attention/partial_rotary_factor",
            0.05,
            "3 of 64",
        ),
        ("llama yarn", "rope_theta", 1, "rope_theta is 1.0"),
        ("llama longrope", "rope_scaling/original_max_position_embeddings", 1, "is 1"),
        ("llama", "rope_theta", 1e300, "rope_theta is 1e+300"),
        ("hybrid_moe", "text_config/norm_topk_prob", None, "norm_topk_prob is null"),
        ("gemma4 proportional", "rope_parameters/full_attention", ABSENT, "full_attention is None"),
        ("gemma4 proportional", "rope_parameters/sliding_attention", 7, "sliding_attention is 7"),
        ("llama linear", "rope_scaling/type", "", "rope_scaling has type ''"),
        ("llama yarn", "rope_scaling/rope_type", 0, "rope_scaling has type '0'"),
        ("gemma4", "use_double_wide_mlp", None, "use_double_wide_mlp is null"),
    ],
)
def test_what_no_kernel_takes_is_named_with_its_numbers(family, key, value, what):
    with pytest.raises(BadConfig, match=re.escape(what)):
        read_decoder(changed(Case(family, key, value)))


@pytest.mark.parametrize("command", ["generate", "certify"])
def test_the_command_line_exits_with_2_and_two_lines(command, tmp_path):
    bad = changed(Case("hybrid", "text_config/linear_conv_kernel_dim", 1))
    (tmp_path / "config.json").write_text(json.dumps(bad))
    options = ["--tokens", "1,2"] if command == "generate" else []
    ran = subprocess.run(
        [sys.executable, "-m", "qwisp", command, "--model", str(tmp_path), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2, ran
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 2
    assert "linear_conv_kernel_dim is 1" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_and_value_is_refused_or_runs_as_the_oracle_does(family):
    found = list(verdicts(cases(family)))
    bad = [v for v in found if not v.is_good and not is_explained(v)]
    assert bad == []
    assert max(v.peak_mib for v in found) < MOST_MIB
    assert sum(v.how == "equal" for v in found) > 10
