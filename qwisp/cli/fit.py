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
from qwisp.cost import CostModel, load_cost
from qwisp.errors import BadInput, NotCalibrated
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.dialect import Dialect, Spelling
from qwisp.memory.dialects import DIALECTS, dialect
from qwisp.memory.fit import fit
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.weights import load_weights
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.machine import MachineSpec
from qwisp.units import format_bytes, parse_bytes, parse_tokens

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
    click.option("--vram", **_SIZE, help="VRAM of the device, instead of --machine."),
]


def _spellings() -> dict[Spelling, list[str]]:
    """Return the options of the engines' own command lines, with the engines that have each."""
    found: dict[Spelling, list[str]] = {}
    for engine, kind in DIALECTS.items():
        for spelling in kind.spellings:
            found.setdefault(spelling, []).append(engine)
    return found


def _option(spelling: Spelling) -> Callable[..., Any]:
    """Return the option as this command line has it."""
    kinds: dict[Any, dict[str, Any]] = {
        "text": {},
        "flag": {"is_flag": True, "default": None},
        "count": {"type": int},
        "share": {"type": float},
        "tokens": _TOKENS,
    }
    value = spelling.value
    kind = {"type": click.Choice(value)} if isinstance(value, tuple) else kinds[value]
    return click.option(*spelling.flags, help=spelling.help, **kind)


def _given(spelling: Spelling, given: dict[str, Any]) -> Any:
    """Return the value of an engine's own option, None where it is not given."""
    return given[spelling.flags[-1].lstrip("-").replace("-", "_")]


def fit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of `fit`, in the order of its help; those of engines come last."""
    for option in reversed([*_OPTIONS, *map(_option, _spellings())]):
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
    lanes = given["lanes"]
    kind = _dialect(given)
    context = _context(kind, given)
    side = SideBudgets(
        prompt_cache_blobs=_count(given, "prompt_cache"),
        prompt_cache_tokens=given["prompt_cache_tokens"] or context or 0,
        checkpoints_per_slot=_count(given, "checkpoints"),
        draft_copies=_count(given, "draft"),
    )
    if side.prompt_cache_blobs and not side.prompt_cache_tokens:
        raise BadInput("--prompt-cache without a length", "add --prompt-cache-tokens or --context")
    if given["slots"] is not None and (given["slots"] < 1 or not kind.streams_experts):
        raise BadInput(
            f"--slots {given['slots']} with engine {kind.name}",
            "give 1 or more with --engine fieldfare, which streams experts",
        )
    admission = ContextAdmission(
        load_model(given["model"]),
        _machine(kind, given),
        prefill=given["prefill"],
        weights=given["weights"] or load_weights(given["model"]),
        dialect=kind,
        lanes=lanes,
        slots_per_layer=given["slots"],
        prompt_tokens=given["prompt"],
        side=side,
    )
    return admission, context


def _dialect(given: dict[str, Any]) -> Dialect:
    """Return the engine as its own options and ours set it."""
    engine, options = given["engine"], {}
    for spelling, engines in _spellings().items():
        value = _given(spelling, given)
        # A sequence's context means the same to every engine.
        if value is None or spelling.sets == "context":
            continue
        if engine in DIALECTS and engine not in engines:
            raise BadInput(
                f"{spelling.flags[-1]} is an option of {' and '.join(engines)}, not of {engine}",
                f"add --engine {engines[0]}, or leave it out",
            )
        options |= dict.fromkeys(spelling.fields, spelling.read(value))
    kind = dialect(engine, options).with_lanes(given["lanes"])
    if given["chunk"] is not None:
        kind = kind.with_chunk(given["chunk"])
    return kind if given["kv_bits"] is None else kind.with_kv_bits(given["kv_bits"])


def _context(kind: Dialect, given: dict[str, Any]) -> int | None:
    """Return the context of one lane, whichever option names it."""
    spelled = [s for s in _spellings() if s.sets in ("context", "all contexts")]
    asked = {"--context": given["context"], **{s.flags[-1]: _given(s, given) for s in spelled}}
    found = {name: value for name, value in asked.items() if value is not None}
    if len(found) > 1:
        raise BadInput(f"the context is given as {' and '.join(found)}", "give it once")
    shared = next((_given(s, given) for s in spelled if s.sets == "all contexts"), None)
    if shared is not None:
        return kind.lane_context(shared, given["lanes"])
    return next(iter(found.values()), None)


def _machine(kind: Dialect, given: dict[str, Any]) -> MachineSpec:
    """Return the machine with the limit that was named, or that its engine sets itself."""
    machine, default, whose = _base_machine(given), kind.default_share, ""
    share = next((_given(s, given) for s in _spellings() if s.sets == "share"), None)
    is_default = share is None and given["memory"] is None and machine.memory_kind == "vram"
    if default is not None and is_default:
        share, whose = default
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
