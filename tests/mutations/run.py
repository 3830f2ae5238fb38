"""Do the tests notice? Apply each mutation to a copy of the project and run the tests beside it.

    python -m tests.mutations.run [ID ...] [--jobs 2]

Exit 1 if one survives. A survivor is a behaviour that no test holds: write the test that misses
it, or say in its list why no caller can see it (`unseen`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.catalog import ROOT, Mutation, load

TIMEOUT_S = 900
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv", ".gpu", "_build", "_notebooks", "__pycache__", ".*_cache"
)


def passes(tests: str, copy: Path) -> bool:
    """Return whether `tests` pass in `copy`.

    A run that hangs has failed: somebody waiting would notice too. Raises `SystemExit` if pytest
    did not run them, which proves nothing.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode and not re.search(r"\d+ (failed|error)|Error", done.stdout):
        raise SystemExit(f"pytest {tests} did not run:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == 0


def survives(mutation: Mutation, copy: Path) -> bool:
    """Return whether the tests pass in a changed `copy`, which is restored afterwards."""
    path = copy / mutation.file
    text = path.read_text("utf-8")
    path.write_text(mutation.applied_to(text), "utf-8")
    try:
        return passes(mutation.tests, copy)
    finally:
        path.write_text(text, "utf-8")


def main() -> int:
    """Run the chosen mutations and print a line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    every = load()
    if unknown := set(asked.ids) - {m.id for m in every}:
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}")
    chosen = [m for m in every if (not asked.ids or m.id in asked.ids) and not m.unseen]
    copies: SimpleQueue[Path] = SimpleQueue()
    alive = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(asked.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(folder, str(n)), ignore=LEFT_BEHIND)))

        def in_a_copy(check, what):
            copy = copies.get()
            try:
                return check(what, copy)
            finally:
                copies.put(copy)

        def one(mutation: Mutation) -> None:
            lives = in_a_copy(survives, mutation)
            if lives:
                alive.append(mutation.id)
            print(mutation.id, "SURVIVED" if lives else "noticed", mutation.file, flush=True)

        with ThreadPoolExecutor(asked.jobs) as pool:
            sets = sorted({m.tests for m in chosen})
            for tests, good in zip(sets, pool.map(partial(in_a_copy, passes), sets), strict=True):
                if not good:
                    raise SystemExit(f"pytest {tests} fails without any mutation")
            for _ in pool.map(one, chosen):
                pass
    unseen = sum(bool(m.unseen) for m in every)
    print(f"{len(chosen)} mutations, {len(alive)} survived; {unseen} more no caller can see")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
