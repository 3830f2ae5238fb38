"""qwisp's own speed, in CPU seconds of one process: figures to read, never tests (`make bench`).

Needs the Azure 2023 conversation trace for the replay rows: the reference files beside the project,
or `QWISP_SHARED=DIR`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("QWISP_SHARED", ROOT.parent / "shared")) / "traces"
CONVERSATION = TRACES / "azure_llm_2023_conv.csv"

REPLAY = """
import sys
from fractions import Fraction
from qwisp.cost import load_cost
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import parse_layout
from qwisp.sim.replay import replay
from qwisp.spec.catalog import load_model
from qwisp.trace.read import read_trace
from qwisp.units import GIB
model = load_model("qwen3.6-35b-a3b")
size = SessionBytes(model)
layout = parse_layout(sys.argv[2], size=size, memory_bytes=12 * GIB, model_context_tokens=262144)
cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
run = replay(read_trace(sys.argv[1]), layout, size, cost, rate=Fraction(sys.argv[3]))
run.summary
"""

ROWS = [
    ("import qwisp", 0.3, ["-c", "import qwisp"]),
    ("qwisp --help", 0.5, ["-m", "qwisp", "--help"]),
    ("replay 19,366 requests, as recorded", 0.5, ["-c", REPLAY, CONVERSATION, "16384x11", "1"]),
    (
        "the same at a twenty-fifth of the rate",
        0.5,
        ["-c", REPLAY, CONVERSATION, "16384x11", "1/25"],
    ),
    ("the same, whole windows", 0.5, ["-c", REPLAY, CONVERSATION, "whole_window:2", "1/25"]),
]


def cpu_s(words: list[object]) -> tuple[float, int]:
    """Return user + system seconds and peak MiB of one fresh Python process."""
    code = (
        "import resource, subprocess, sys; code = subprocess.run([sys.executable, *sys.argv[1:]],"
        "stdout=subprocess.DEVNULL).returncode; u = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(u.ru_utime + u.ru_stime, u.ru_maxrss); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, *map(str, words)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return float(out[0]), int(out[1]) // unit


def main() -> None:
    """Print the best of three runs of every row beside its aim."""
    print(f"{'what':<42} {'CPU s':>7} {'aim':>6} {'peak MiB':>9}")
    for name, aim_s, words in ROWS:
        if CONVERSATION in words and not CONVERSATION.is_file():
            print(f"{name:<42} {'-':>7} {aim_s:>6} {'-':>9}  no Azure trace beside the project")
            continue
        seconds, peak = min(cpu_s(words) for _ in range(3))
        print(f"{name:<42} {seconds:>7.2f} {aim_s:>6} {peak:>9}", flush=True)


if __name__ == "__main__":
    main()
