"""`qwisp fit`: how much memory a model needs here, and the largest context that fits.

It is asked in this project's spelling and in that of other engines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.fit_text import show
from qwisp.context_rule import ContextAdmission
from qwisp.cost import CostModel, load_cost
from qwisp.errors import BadInput, NotCalibrated
from qwisp.memory.dialects import DIALECTS, dialect
from qwisp.memory.fit import fit
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.variants import with_chunk, with_kv_bits, with_lanes
from qwisp.memory.weights import load_weights
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.machine import MachineSpec
from qwisp.units import format_bytes, parse_bytes, parse_tokens

VLLM_DEFAULT_SHARE = 0.9  # what vLLM takes of a device when --gpu-memory-utilization is not given
# Options that one engine has: its own spelling -> (engines, option of the dialect).
_OWN: dict[str, tuple[tuple[str, ...], str]] = {
    "cache_type_k": (("llama.cpp",), "k_type"),
    "cache_type_v": (("llama.cpp",), "v_type"),
    "kv_unified": (("llama.cpp",), "unified"),
    "swa_full": (("llama.cpp",), "swa_full"),
    "flash_attn": (("llama.cpp",), "flash_attn"),
    "kv_cache_dtype": (("vllm", "sglang"), "k_type"),
    "tensor_parallel_size": (("vllm", "sglang"), "tensor_parallel"),
    "gpu_memory_utilization": (("vllm", "sglang"), ""),
}
_TOKENS = {"type": parse_tokens, "metavar": "TOKENS"}
_SIZE = {"type": parse_bytes, "metavar": "SIZE"}
_OPTIONS = [
    click.option("--model", required=True, metavar="NAME|PATH", help="Catalog name, config, GGUF."),
    click.option("--machine", default=None, metavar="NAME", help="Catalog name; default: this."),
    click.option("--engine", default="qwisp", show_default=True, help=", ".join(DIALECTS)),
    click.option("--context", **_TOKENS, help="Tokens of each lane, like 64K."),
    click.option(
        "--lanes",
        "-np",
        "--parallel",
        type=int,
        default=1,
        show_default=True,
        help="Lanes, slots or sequences.",
    ),
    click.option(
        "--prefill",
        type=click.Choice(["chunked", "unchunked"]),
        default="chunked",
        show_default=True,
        help="Unchunked keeps windows at the whole context.",
    ),
    click.option("--chunk", "-ub", "--ubatch-size", **_TOKENS, help="Prefill chunk."),
    click.option("--kv-bits", type=int, help="Cache rows in 16, 8 or 4 bits."),
    click.option("--memory", metavar="SIZE", help="What the process may take, like 40GiB or 80%."),
    click.option("--weights", **_SIZE, help="Bytes of the weights, if they are not known."),
    click.option("--slots", type=int, help="Expert slots per layer (fieldfare)."),
    click.option("--prompt", **_TOKENS, help="Longest prompt; default: the whole context."),
    click.option("--prompt-cache", type=int, default=0, help="Stored prompts to keep."),
    click.option("--prompt-cache-tokens", **_TOKENS, help="Tokens of each; default: context."),
    click.option("--checkpoints", type=int, default=0, help="State checkpoints kept per slot."),
    click.option("--draft", type=int, default=0, help="Draft depth: copies of the state."),
    click.option(
        "--patience",
        type=click.FloatRange(min=0),
        default=300.0,
        show_default=True,
        help="Seconds a full prompt may take in the recommended context.",
    ),
    click.option("-c", "--ctx-size", **_TOKENS, help="llama.cpp: context over all slots."),
    click.option("-ctk", "--cache-type-k", help="llama.cpp: type of key rows."),
    click.option("-ctv", "--cache-type-v", help="llama.cpp: type of value rows."),
    click.option("-kvu", "--kv-unified", is_flag=True, default=None, help="llama.cpp: one stream."),
    click.option("--swa-full", is_flag=True, default=None, help="llama.cpp: windows in full."),
    click.option(
        "-fa",
        "--flash-attn",
        type=click.Choice(["on", "off", "auto"]),
        help="llama.cpp: flash attention.",
    ),
    click.option("--max-model-len", **_TOKENS, help="vLLM: context of a sequence."),
    click.option("--kv-cache-dtype", help="vLLM: type of cache rows."),
    click.option("-tp", "--tensor-parallel-size", type=int, help="vLLM: devices per layer."),
    click.option("--gpu-memory-utilization", type=float, help="vLLM: share of the VRAM."),
    click.option("--vram", **_SIZE, help="VRAM of the device, instead of --machine."),
]


def fit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of `fit`, in the order of its help."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("fit")
@fit_options
@output.formats
@click.pass_context
def command(ctx: click.Context, output_format: str, patience: float, **given: Any) -> None:
    """Print the memory of a model by term and which contexts fit; exit 1 if the asked one does not.

    Each term says how it is known: exact, measured here, borrowed from another machine or model, or
    unmeasured. Other engines' spellings work with --engine: `--engine llama.cpp -c 32768 -np 4 -ctk
    q8_0 -ub 512`, `--engine vllm --max-model-len 32768 --gpu-memory-utilization 0.9 --vram 24GiB`.
    """
    admission, context = read_admission(given)
    answer = fit(admission, context, cost=_cost(admission), patience_s=patience)
    show(answer, output_format)
    if answer.refusal is not None:
        ctx.exit(1)


def _cost(admission: ContextAdmission) -> CostModel | None:
    """Return the times of this very pair; without them `fit` still answers for memory."""
    if admission.model is not None and admission.machine is not None:
        with suppress(NotCalibrated):
            return load_cost(admission.model.name, admission.machine.name)
    return None


def read_admission(given: dict[str, Any]) -> tuple[ContextAdmission, int | None]:
    """Return the rule that the options describe, and the context per lane that was asked for."""
    engine = given["engine"]
    model = load_model(given["model"])
    lanes = given["lanes"]
    kind = with_lanes(dialect(engine, _engine_options(engine, given)), lanes)
    if given["chunk"] is not None:
        kind = with_chunk(kind, given["chunk"])
    if given["kv_bits"] is not None:
        kind = with_kv_bits(kind, given["kv_bits"])
    context = _context(engine, given, bool(given["kv_unified"]))
    side = SideBudgets(
        prompt_cache_blobs=_count(given, "prompt_cache"),
        prompt_cache_tokens=given["prompt_cache_tokens"] or context or 0,
        checkpoints_per_slot=_count(given, "checkpoints"),
        draft_copies=_count(given, "draft"),
    )
    if side.prompt_cache_blobs and not side.prompt_cache_tokens:
        raise BadInput("--prompt-cache without a length", "add --prompt-cache-tokens or --context")
    if given["slots"] is not None and (given["slots"] < 1 or engine != "fieldfare"):
        raise BadInput(
            f"--slots {given['slots']} with engine {engine}",
            "give 1 or more with --engine fieldfare, which streams experts",
        )
    admission = ContextAdmission(
        model,
        _machine(given),
        prefill=given["prefill"],
        weights=given["weights"] or load_weights(given["model"]),
        dialect=kind,
        lanes=lanes,
        slots_per_layer=given["slots"],
        prompt_tokens=given["prompt"],
        side=side,
    )
    return admission, context


def _engine_options(engine: str, given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, (engines, option) in _OWN.items():
        value = given[name]
        if value is None:
            continue
        if engine not in engines:
            spelled = "--" + name.replace("_", "-")
            raise BadInput(
                f"{spelled} is an option of {' and '.join(engines)}, not of {engine}",
                f"add --engine {engines[0]}, or leave it out",
            )
        if name == "flash_attn":
            value = value != "off"
        if name == "kv_cache_dtype":
            value = None if value == "auto" else value
            options["v_type"] = value
        if option:
            options[option] = value
    return options


def _context(engine: str, given: dict[str, Any], unified: bool) -> int | None:
    """Return the context of one lane. llama.cpp's own option means all slots together."""
    asked = {
        "--context": given["context"],
        "--ctx-size": given["ctx_size"],
        "--max-model-len": given["max_model_len"],
    }
    found = {name: value for name, value in asked.items() if value is not None}
    if len(found) > 1:
        raise BadInput(f"the context is given as {' and '.join(found)}", "give it once")
    if given["ctx_size"] is None:
        return next(iter(found.values()), None)
    if engine != "llama.cpp":
        raise BadInput(f"--ctx-size is an option of llama.cpp, not of {engine}", "use --context")
    return given["ctx_size"] if unified else max(1, given["ctx_size"] // max(1, given["lanes"]))


def _machine(given: dict[str, Any]) -> MachineSpec:
    """Return the machine with the limit that was named, or that its engine sets itself."""
    machine, share, whose = _base_machine(given), given["gpu_memory_utilization"], ""
    is_vllm = given["engine"] == "vllm" and machine.memory_kind == "vram"
    if share is None and given["memory"] is None and is_vllm:
        share, whose = VLLM_DEFAULT_SHARE, "vLLM's default of "
    if share is not None:
        if not 0 < share <= 1:
            raise BadInput(f"--gpu-memory-utilization {share}", "give a share like 0.9")
        name = f"{whose}{share:g} of {format_bytes(machine.memory_bytes)}, a limit"
        machine = replace(machine, limit_bytes=int(machine.memory_bytes * share), limit_name=name)
    elif given["memory"] is not None:
        limit = parse_bytes(given["memory"], of_bytes=machine.memory_bytes)
        if limit > machine.memory_bytes:
            raise BadInput(
                f"--memory {given['memory']} is {format_bytes(limit)}, above the"
                f" {format_bytes(machine.memory_bytes)} of {machine.title}",
                "give less, or another --machine",
            )
        machine = replace(machine, limit_bytes=limit, limit_name="--memory")
    return machine


def _base_machine(given: dict[str, Any]) -> MachineSpec:
    if given["vram"] is None:
        return load_machine(given["machine"] or "this")
    if given["machine"] is not None:
        raise BadInput("--vram and --machine both name the memory", "give one of them")
    size = given["vram"]
    return MachineSpec(
        name="vram",
        title=f"a device of {format_bytes(size)}",
        memory_bytes=size,
        memory_kind="vram",
        limit_bytes=size,
        limit_name="--vram",
    )


def _count(given: dict[str, Any], name: str) -> int:
    value: int = given[name]
    if value < 0:
        raise BadInput(f"--{name.replace('_', '-')} {value} is negative", "give 0 or more")
    return value
