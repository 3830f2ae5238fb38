"""qwisp's own speed, in CPU seconds of one process: figures to read, never tests (`make bench`).

The replay rows need the public traces: the reference files beside the project, or
`QWISP_SHARED=DIR`. Beside each figure stands that of a plain loop in the same minute, so that a
busy machine is seen. The peer is `ai-dynamo`, where it is installed (`DYNAMO_PYTHON=python` names
another environment).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("QWISP_SHARED", ROOT.parent / "shared")) / "traces"
AZURE, MOONCAKE = TRACES / "azure_llm_2023_conv.csv", TRACES / "mooncake_conversation.jsonl"
SIZED = "65536,32768x3,16384x11"
LARGE = "131072x2,65536x3,32768x3,16384x11"

YARDSTICK = """
import json, time
def loop():
    began, table = time.process_time(), {}
    for i in range(2_000_000):
        table[i & 255] = (i, i)
    return time.process_time() - began
print(json.dumps({"cpu_s": loop()}))
"""

REPLAY = """
import json, resource, sys, time
clock = time.process_time
from fractions import Fraction
import numpy as np
from qwisp.cost import load_cost
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import parse_layout
from qwisp.sim.replay import replay, settings_for
from qwisp.sim.frames import requests_frame
from qwisp.sim.summary import summarize
from qwisp.spec.catalog import load_model
from qwisp.trace.read import read_trace
from qwisp.trace.request import Request, Trace
from qwisp.units import GIB

def made(num):
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(14e9, num)).astype(np.int64).tolist()
    prompts = np.clip(rng.lognormal(6.4, 0.8, num), 8, 8000).astype(np.int64).tolist()
    outputs = np.clip(rng.lognormal(5.0, 0.8, num), 1, 2000).astype(np.int64).tolist()
    requests = tuple(map(Request, range(num), arrivals, prompts, outputs))
    return Trace(name="made", requests=requests, source="generated")

what, text, memory, store, rate = sys.argv[1:]
size = SessionBytes(load_model("qwen3.6-35b-a3b"))
cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
layout = parse_layout(
    text, size=size, memory_bytes=int(memory) * GIB, model_context_tokens=262144
)
settings = settings_for(cost, prefix_bytes=int(store) * GIB)
began = clock()
trace = made(int(what)) if what.isdigit() else read_trace(what)
read = clock()
run = replay(trace, layout, size, cost, settings, rate=Fraction(rate))
replayed = clock()
run.summary
tables = clock()
scale = 2**20 if sys.platform == "darwin" else 2**10
print(json.dumps({
    "import_s": began, "read_s": read - began, "replay_s": replayed - read,
    "tables_s": tables - replayed, "cpu_s": tables - began,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
    "requests": len(trace.requests), "tokens": trace.output_tokens,
    "rounds": run.scheduler.index, "events": len(run.executor.rounds),
}))
"""

# name, aim in CPU s from reading to summary tables, arguments of REPLAY
REPLAYS = [
    ("Azure conversation, as recorded", 0.5, [AZURE, SIZED, 12, 0, "1"]),
    ("Azure conversation, 1/25 of the rate", 0.5, [AZURE, SIZED, 12, 0, "1/25"]),
    ("Azure conversation, whole windows", 0.5, [AZURE, "whole_window:2", 12, 0, "1/25"]),
    ("Mooncake conversation, store of 64 GiB", 1.0, [MOONCAKE, LARGE, 40, 64, "1"]),
    ("Mooncake conversation, no store", 1.0, [MOONCAKE, LARGE, 40, 0, "1"]),
]
STARTS = [
    ("import qwisp", 0.3, ["-c", "import qwisp"]),
    ("qwisp --help", 0.5, ["-m", "qwisp", "--help"]),
]
CURVE = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


def cpu_s(words: list[object], python: str = sys.executable) -> tuple[float, float]:
    """Return user + system seconds and peak MiB of one fresh process."""
    code = (
        "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:],"
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode;"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(u.ru_utime + u.ru_stime, u.ru_maxrss); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, python, *map(str, words)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), int(out[1]) / (2**20 if sys.platform == "darwin" else 2**10)


def measured(code: str, arguments: list[object] = (), times: int = 3) -> dict[str, float]:
    """Return what the best of `times` fresh processes says of itself, the yardstick beside it."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    found = [
        json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        for _ in range(times)
    ]
    best = min(found, key=lambda one: one["cpu_s"])
    if code is not YARDSTICK:
        best["yardstick_s"] = measured(YARDSTICK)["cpu_s"]
    return best


def show_starts() -> None:
    """Print what it takes to begin."""
    print(f"{'start':<42} {'CPU s':>7} {'aim':>5} {'peak MiB':>9}")
    for name, aim_s, words in STARTS:
        seconds, peak = min(cpu_s(words) for _ in range(3))
        print(f"{name:<42} {seconds:>7.2f} {aim_s:>5} {peak:>9.0f}", flush=True)


def show_replays() -> None:
    """Print every replay row: the parts, their sum beside its aim, the peak, the yardstick."""
    heads = ("read", "replay", "tables", "sum", "aim", "MiB", "imports", "loop")
    print(f"\n{'replay (CPU s)':<40}" + "".join(f"{head:>8}" for head in heads))
    for name, aim_s, arguments in REPLAYS:
        if not arguments[0].is_file():
            print(f"{name:<40}  no {arguments[0].name} beside the project")
            continue
        one = measured(REPLAY, arguments)
        parts = [one[key] for key in ("read_s", "replay_s", "tables_s", "cpu_s")]
        text = "".join(f"{part:>8.3f}" for part in parts) + f"{aim_s:>8}{one['peak_mib']:>8.0f}"
        print(f"{name:<40}{text}{one['import_s']:>8.2f}{one['yardstick_s']:>8.3f}", flush=True)


def show_curve(most: int) -> None:
    """Print how the cost grows: with events, not with tokens or rounds."""
    heads = ("requests", "reply tokens", "rounds", "events", "CPU s", "us an event", "MiB", "loop")
    print("\nsynthetic requests; an event is an answer of the scheduler that was carried out")
    print("".join(f"{head:>14}" for head in heads))
    for num in (num for num in CURVE if num <= most):
        one = measured(REPLAY, [num, "16384x11", 12, 0, "1"], times=1)
        counts = [one[key] for key in ("requests", "tokens", "rounds", "events")]
        text = "".join(f"{number:>14,}" for number in counts)
        each = one["cpu_s"] / one["events"] * 1e6
        print(
            f"{text}{one['cpu_s']:>14.2f}{each:>14.1f}{one['peak_mib']:>14.0f}"
            f"{one['yardstick_s']:>14.3f}",
            flush=True,
        )


def show_peer() -> None:
    """Print dynamo.replay on the same Mooncake trace, or that it is not installed."""
    python = os.environ.get("DYNAMO_PYTHON")
    if python is None and importlib.util.find_spec("dynamo") is None:
        print("\npeer: ai-dynamo (dynamo.replay) is not installed; DYNAMO_PYTHON names its python")
        return
    if not MOONCAKE.is_file():
        print("\npeer: no Mooncake trace beside the project")
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["-m", "dynamo.replay", MOONCAKE, "--trace-block-size", 512]
        words += ["--report-json", report]
        seconds, peak = min(cpu_s(words, python or sys.executable) for _ in range(2))
    ours, our_peak = cpu_s(["-c", REPLAY, MOONCAKE, LARGE, 40, 64, "1"])
    print("\nMooncake conversation, whole process (another model of an engine: speed only)")
    print(f"{'dynamo.replay':<42} {seconds:>7.2f} s {peak:>9.0f} MiB")
    print(f"{'qwisp':<42} {ours:>7.2f} s {our_peak:>9.0f} MiB")


if __name__ == "__main__":
    show_starts()
    show_replays()
    show_peer()
    show_curve(int(sys.argv[1]) if len(sys.argv) > 1 else CURVE[-1])
