"""A config with one key changed to something odd: is it refused, or does it run as mlx-lm does?

`python -m tests.engine.geometry FAMILY` reads cases (`key` and `value`, JSON, a line each) from
stdin and answers each with a line before it takes the next: a process that dies names its case.
"""

from __future__ import annotations

import contextlib
import copy
import json
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qwisp.engine.spec.families import read_decoder
from qwisp.engine.spec.tiny import MORE_TINY, TINY

ABSENT = "<absent>"
VALUES = (
    *(ABSENT, None, True, False, 0, 1, 2, 3, 5, 7, 31, 33, 48, -1, -8),
    *(2**20 + 1, 2**31, 2**40, 10**400, 0.5, 2.0, 1e-9, 1e300, float("nan"), float("inf")),
    *("", "8", "full", [], [8], {}, {"a": 1}),
)
"""What a key is set to: absent, null, flags, zero, odd, negative and huge numbers, other types."""

_QUANT = {"bits": 4, "group_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in config.items() if value is not None}
    for name, config in {**TINY, **MORE_TINY}.items()
}
ROPES = {
    "linear": {"type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 512,
        "short_factor": [1.0] * 16,
        "long_factor": [1.0 + 0.25 * i for i in range(16)],
    },
}
for _kind, _scaling in ROPES.items():
    FAMILIES[f"llama {_kind}"] = FAMILIES["llama"] | {"rope_scaling": _scaling}
FAMILIES["gemma4 proportional"] = FAMILIES["gemma4"] | {
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
FAMILIES["llama windows"] = FAMILIES["llama"] | {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 40,
}
FAMILIES["llama 4-bit"] = FAMILIES["llama"] | {"quantization": _QUANT}
FAMILIES["hybrid_moe 4-bit"] = FAMILIES["hybrid_moe"] | {
    "quantization": _QUANT
    | {"language_model.model.layers.0.mlp.gate": {"bits": 8, "group_size": 32}}
}
UNSET = {
    "llama": ("sliding_window", "layer_types", "num_nextn_predict_layers", "rope_scaling"),
    "hybrid": ("mtp_num_hidden_layers", "attention_bias", "decoder_sparse_step", "mlp_only_layers"),
    "hybrid_moe": ("decoder_sparse_step", "mlp_only_layers"),
    "qwen3": ("use_sliding_window", "max_window_layers", "sliding_window", "attention_bias"),
    "gemma3": ("layer_types", "attn_logit_softcapping", "rope_scaling"),
    "llama yarn": ("rope_scaling/attention_factor",),
    "gemma4": ("sliding_window_pattern", "attention_k_eq_v", "num_global_key_value_heads"),
}
"""Keys that a family reads where its tiny config does not set them."""


class Case(NamedTuple):
    """One key of one family set to a value; slashes lead into objects."""

    family: str
    key: str
    value: Any


class Verdict(NamedTuple):
    """`how`: refused, equal, or what is wrong; `peak_mib` what the process had taken by then."""

    case: Case
    how: str
    what: str = ""
    peak_mib: int = 0

    @property
    def is_good(self) -> bool:
        """Refused in two lines, or equal to the oracle."""
        return self.how in ("refused", "equal")


def keys_of(family: str) -> list[str]:
    """Return every key of a family's config that holds no object, and those it leaves unset."""
    config = FAMILIES[family]
    found = list(_leaves(config, ""))
    inner = "text_config/" if "text_config" in config else ""
    if inner:
        found.remove("model_type")  # the tower's own says what it is
    return found + [inner + key for key in UNSET.get(family, ())]


def _leaves(config: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in config.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}/")


def changed(case: Case) -> dict[str, Any]:
    """Return the family's config with the key set."""
    config = copy.deepcopy(FAMILIES[case.family])
    *path, last = case.key.split("/")
    at = config
    for name in path:
        at = at[name]
    if case.value == ABSENT:
        at.pop(last, None)
    else:
        at[last] = case.value
    return config


# ---- the process that tries them ----------------------------------------------------------------

MOST_ELEMENTS = 2 * 10**7
BOUND = 2e-3  # the oracle test holds five layers to a tenth of it; here are up to 48


def judge(case: Case, folder: Path) -> tuple[str, str]:
    """Return a verdict's `how` and `what` for one case."""
    from qwisp.engine.weights.loading import load_decoder
    from qwisp.engine.weights.weight_shapes import weight_shapes
    from qwisp.errors import QwispError

    config = changed(case)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        spec = read_decoder(config)
        elements = sum(_product(shape) for _, shape in weight_shapes(spec))
        if elements > MOST_ELEMENTS:  # nobody has such weights: these are the plain config's
            _weights(FAMILIES[case.family], spec, folder)
            (folder / "config.json").write_text(json.dumps(config))
            load_decoder(folder)
            return "runs with others' weights", f"{elements:,} elements"
        _weights(config, spec, folder)
        load_decoder(folder)
    except QwispError as error:
        lines = str(error).splitlines()
        return ("refused", lines[0]) if len(lines) == 2 else ("not two lines", str(error))
    del spec
    return _compared(config, folder)


def _weights(config: dict[str, Any], spec: Any, folder: Path) -> None:
    """Write weights of just these sizes, mlx-lm's own where it can make them."""
    import mlx.core as mx

    from qwisp.engine.weights.random_weights import random_weights

    from .oracle import oracle_model, quantise, save

    quantisation = config.get("quantization")
    plain = {key: value for key, value in config.items() if key != "quantization"}
    try:
        model = oracle_model(plain)
        if isinstance(quantisation, dict):
            model, _ = quantise(model, plain, 4, 32)
        save(folder, model, config)
    except Exception:
        mx.save_safetensors(str(folder / "model.safetensors"), random_weights(spec, 0))


def _compared(config: dict[str, Any], folder: Path) -> tuple[str, str]:
    import numpy as np

    from qwisp.engine.weights.loading import load_decoder
    from qwisp.errors import QwispError

    from .oracle import engine_steps, oracle_model, oracle_steps, quantise

    try:
        model = load_decoder(folder)
        vocab = model.decoder.spec.vocab
        prompt_tokens = min(70, (model.spec.context_max_tokens or 70) - 4)
        if prompt_tokens < 1:
            return "refused", "too short a context for any prompt: `generate` says so"
        prompt = tuple(np.random.default_rng(1).integers(0, vocab, prompt_tokens).tolist())
        ours = engine_steps(model, prompt, 4)
    except QwispError as error:
        return "refused", str(error).splitlines()[0]
    plain = {key: value for key, value in config.items() if key != "quantization"}
    try:
        model = oracle_model(plain)
        if "quantization" in config:
            model, _ = quantise(model, plain, 4, 32)
        theirs = oracle_steps(model, prompt, 4)
    except Exception as error:
        return "runs, the oracle does not", f"{type(error).__name__}: {str(error)[:90]}"
    gap = float(np.abs(ours.logits - theirs.logits).max())
    if ours.tokens == theirs.tokens and gap < BOUND:
        return "equal", ""
    return "differs from the oracle", f"by {gap:.2g}"


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _serve(family: str) -> None:
    limit = 12 * 2**30  # of addresses, not of memory: enough for MLX, too little for the absurd
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        asked = json.loads(line)
        case = Case(family, asked["key"], asked["value"])
        with tempfile.TemporaryDirectory() as folder:
            try:
                how, what = judge(case, Path(folder))
            except BaseException:
                how, what = "traceback", traceback.format_exc()[-600:]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"how": how, "what": what, "peak_mib": peak}), flush=True)


def verdicts(cases: Iterable[Case]) -> Iterator[Verdict]:
    """Yield a verdict per case, tried in processes of their own; cases of a family in a row."""
    process, family = None, ""
    for case in cases:
        if process is None or family != case.family:
            _stop(process)
            process, family = _start(case.family), case.family
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"key": case.key, "value": case.value}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            yield Verdict(case, **json.loads(line))
            continue
        _stop(process)
        yield Verdict(case, f"the process died with {process.returncode}")
        process = None
    _stop(process)


def _start(family: str, command: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = command or [sys.executable, "-W", "ignore", "-m", "tests.engine.geometry", family]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _stop(process: subprocess.Popen[str] | None) -> None:
    if process is None or process.stdin is None or process.stdout is None:
        return
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait()
    process.stdout.close()


if __name__ == "__main__":
    _serve(sys.argv[1])
