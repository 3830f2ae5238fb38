"""A million requests: read in full, with the peak memory of the reading process printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NUM_ROWS = 10**6
READ = """
import resource, sys
from qwisp.trace.read import read_trace
trace = read_trace(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(trace.requests), trace.num_failed, peak * (1 if sys.platform == "darwin" else 1024))
"""


def azure(i: int) -> str:
    day, hour, minute, second = 1 + i // 86400, i // 3600 % 24, i // 60 % 60, i % 60
    return f"2023-11-{day:02} {hour:02}:{minute:02}:{second:02}.{i:07},{i % 999 + 1},{i % 77 + 1}"


def burstgpt(i: int) -> str:
    return f"{i}.0,ChatGPT,{i % 999 + 1},{i % 7},0,API log"


def own(i: int) -> str:
    return f'{{"arrival_s": {i}.5, "prompt_tokens": {i % 999 + 1}, "output_tokens": {i % 77 + 1}}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "line", "num_failed", "most_mib"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens", azure, 0, 600),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            burstgpt,
            142858,
            600,
        ),
        ("", own, 0, 600),
    ],
)
def test_a_million_rows_are_read_within_600_mib(
    tmp_path: Path, head: str, line: Callable[[int], str], num_failed: int, most_mib: int
) -> None:
    path = tmp_path / "big"
    path.write_text("\n".join([head, *map(line, range(NUM_ROWS))]))
    out = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, check=True)
    num, failed, peak_bytes = map(int, out.stdout.split())
    print(f"{line.__name__}: {num} requests, peak {peak_bytes / 2**20:.0f} MiB")
    assert (num, failed) == (NUM_ROWS - num_failed, num_failed)
    assert peak_bytes <= most_mib * 2**20
