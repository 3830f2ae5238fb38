"""From a command to the scheduler's decision it is a few calls, read in one sitting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import qwisp
from qwisp.cli import main
from qwisp.scheduling.scheduler import Scheduler

MOST_FRAMES = 6
PACKAGE = Path(qwisp.__file__).parent
AGENTS = PACKAGE.parent / "data" / "traces" / "agents.jsonl"
MACHINE = ["--model=qwen3.6-35b-a3b", "--machine=m1-max-64gb", "--memory=12GiB"]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    """The ways to `Scheduler.plan` that were taken: our functions, outermost first."""
    found: set[tuple[str, ...]] = set()
    plan = Scheduler.plan

    def noted(scheduler: Scheduler):
        frame, ours = sys._getframe(1), ["plan"]
        while frame is not None and frame.f_code is not main.__code__:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                ours.append(frame.f_code.co_name)
            frame = frame.f_back
        assert frame is not None, "the command line was not on the way"
        if "alone_ps" not in ours:  # a verdict's own question: how long would one request take?
            found.add(tuple(reversed(ours)))
        return plan(scheduler)

    monkeypatch.setattr(Scheduler, "plan", noted)
    return found


@pytest.mark.parametrize(
    ("words", "searches"),
    [
        (["plan", "--layout=16384x4"], True),
        (["plan", "--layout=16384x4", "--rate=1x"], False),
        (["replay", "--layout=16384x4", "--sustain"], True),
        (["replay", "--layout=16384x4"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_from_the_command_to_a_decision_it_is_at_most_six_of_our_calls(
    words: list[str], searches: bool, paths, tmp_path
) -> None:
    trace = tmp_path / "few.jsonl"
    trace.write_text("".join(AGENTS.read_text().splitlines(keepends=True)[:12]))
    main([*words, *MACHINE, f"--trace={trace}"])  # whether a rate is found does not matter here
    assert any("sustain" in path for path in paths) is searches
    assert {path[0] for path in paths} == {"command"}
    assert max(map(len, paths)) <= MOST_FRAMES, paths
