"""Where and by what a measurement was made: machine, package versions, commit of the source."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("qwisp", "numpy", "polars", "mlx", "mlx-lm", "tokenizers")
_SOURCE = Path(__file__).resolve().parents[2]
# Results lie in the source tree: writing one must not make the tree that wrote it look changed.
_RESULTS = ("receipts.jsonl", "VERDICT.md", "report.html", "LOG.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every receipt of a run says about its origin.

    `machine` and `packages` are pairs of name and value. `commit` is empty outside a checkout;
    `is_dirty` says that tracked files (results apart) differ from it.
    """

    machine: tuple[tuple[str, str], ...]
    packages: tuple[tuple[str, str], ...]
    commit: str
    is_dirty: bool

    @classmethod
    def here(cls, packages: Sequence[str] = PACKAGES, source: Path = _SOURCE) -> Stamp:
        """Return the stamp of this process on this machine."""
        commit, is_dirty = git_state(source)
        return cls(
            machine=this_machine(),
            packages=tuple((name, version) for name in packages if (version := _version(name))),
            commit=commit,
            is_dirty=is_dirty,
        )


def this_machine() -> tuple[tuple[str, str], ...]:
    """Return name and value of what identifies this kind of machine; no host or user names."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        ("system", f"{platform.system()} {platform.release()}"),
        ("architecture", platform.machine()),
        ("processor", _processor()),
        ("cores", str(os.cpu_count())),
        ("memory_bytes", str(memory_bytes)),
        ("python", platform.python_version()),
    )


def _processor() -> str:
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def git_state(source: Path) -> tuple[str, bool]:
    """Return `(commit, whether tracked files differ from it)`; `("", False)` outside a checkout."""
    top = _output(["git", "-C", str(source), "rev-parse", "--show-toplevel"])
    if not top or Path(top).resolve() != source.resolve():
        return "", False
    commit = _output(["git", "-C", str(source), "rev-parse", "HEAD"])
    without = [f":(exclude,glob)**/{name}" for name in _RESULTS]
    status = ["git", "-C", str(source), "status", "--porcelain", "--untracked-files=no", "--", "."]
    return commit, bool(_output(status + without))


def _output(words: list[str]) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
