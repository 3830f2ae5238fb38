"""`qwisp replay --facts`: the recorded decisions again, or exit 1 and where to look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwisp.cli import main
from qwisp.errors import BadInput
from qwisp.facts.record import Recorded, write_run
from qwisp.facts.replay import replay_facts
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import RowBytes, ScriptedRequest, ToyEngine

SETTINGS = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8)
# Request 0 outgrows the session of 24 and ends in one of 96; the others keep both busy.
ASKS = [ScriptedRequest(number, 8, 40 - 9 * number, None, arrives=number) for number in range(4)]


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Scheduler]:
    """A file of facts and the scheduler of the run that it comes from."""
    size = RowBytes()
    layout = parse_layout(
        "24x2", size=size, memory_bytes=1, model_context_tokens=96, own_context_tokens=96
    )
    space = RowSpace(layout, size)
    run = Recorded(ToyEngine(ASKS, space.num_rows))
    scheduler = Scheduler(space, SETTINGS)
    drive(scheduler, run)
    path = tmp_path / "run.jsonl"
    write_run(path, run, scheduler)
    return path, scheduler


def test_the_document_says_that_the_decisions_are_the_recorded_ones(recorded, capsys) -> None:
    path, scheduler = recorded
    assert main(["replay", "--facts", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] is True
    assert document["decisions"] == len(scheduler.log)
    assert document["finished"] == document["requests"] == len(ASKS)
    assert document["moves"] == sum(e.kind in ("move", "resume") for e in scheduler.log) > 0
    assert document["rounds"] == scheduler.index
    assert document["estimated_s"] is None


def test_a_header_without_facts_is_no_success(recorded, capsys) -> None:
    path, _ = recorded
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert main(["replay", "--facts", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "0 facts" in err


def test_a_header_key_that_nothing_reads_is_named(recorded, capsys) -> None:
    path, _ = recorded
    assert main(["replay", "--facts", str(path)]) == 0
    assert "not used" not in capsys.readouterr().out
    path.write_text(path.read_text().replace('"grow":', '"grow_tokens": 4, "grow":', 1))
    assert main(["replay", "--facts", str(path)]) == 0
    assert "not used: header keys grow_tokens;" in capsys.readouterr().out


def test_a_changed_fact_is_exit_1_with_the_numbers(recorded, capsys) -> None:
    path, _ = recorded
    text = path.read_text()
    assert '"prompt_tokens": 8,' in text
    path.write_text(text.replace('"prompt_tokens": 8,', '"prompt_tokens": 7,', 1))
    assert main(["replay", "--facts", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["equal"] is False
    assert "digest" in err


def test_without_a_digest_nothing_is_claimed(recorded, capsys) -> None:
    path, _ = recorded
    header, *lines = path.read_text().splitlines()
    bare = {k: v for k, v in json.loads(header).items() if k != "log_sha256"}
    path.write_text("\n".join([json.dumps(bare), *lines]) + "\n")
    assert main(["replay", "--facts", str(path)]) == 0
    out = capsys.readouterr().out
    assert "not compared" in out
    assert "log_sha256" in out


def test_a_model_and_a_machine_give_the_same_rounds_a_duration(recorded, capsys) -> None:
    path, _ = recorded
    words = ["--model=qwen3.6-35b-a3b", "--machine=m1-max-64gb", "--json"]
    assert main(["replay", "--facts", str(path), *words]) == 0
    assert json.loads(capsys.readouterr().out)["estimated_s"] > 0


@pytest.mark.parametrize(
    "words", [["--layout=1"], ["--sustain"], ["--trace=x"], ["--budget=0"], ["--machine=this"]]
)
def test_what_the_header_decides_is_not_asked_twice(recorded, words, capsys) -> None:
    path, _ = recorded
    assert main(["replay", "--facts", str(path), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words[0].split("=")[0] in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("content", [None, "", "{}\n", "not json\n", '{"id": 1}\n'])
def test_files_that_hold_no_facts_are_refused(content, tmp_path, capsys) -> None:
    path = tmp_path / "facts.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["replay", "--facts", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2


def test_a_policy_file_named_by_facts_runs_only_when_its_reader_names_it(
    recorded, tmp_path, capsys
) -> None:
    path, _ = recorded
    ran = tmp_path / "ran"
    policy = tmp_path / "mine.py"
    policy.write_text(
        f"open({str(ran)!r}, 'w').close()\n"
        "PASSES = False\n"
        "def pick(waiting, fits, max_passed):\n    return 0 if fits(0) else None\n"
    )
    header, *facts = path.read_text().splitlines()
    changed = json.loads(header) | {"order": str(policy)}
    path.write_text("\n".join([json.dumps(changed), *facts]) + "\n")
    assert main(["replay", "--facts", str(path)]) == 2
    assert "not run unasked" in capsys.readouterr().err
    assert not ran.exists()
    assert main(["replay", "--facts", str(path), "--order", str(policy)]) == 0
    assert ran.exists()


def test_the_cut_of_a_run_is_replayed_with_it(recorded) -> None:
    path, _ = recorded
    header, *facts = path.read_text().splitlines()
    assert json.loads(header)["cut"] == "smallest_fit"
    other = path.with_name("other.jsonl")
    other.write_text("\n".join([json.dumps(json.loads(header) | {"cut": "first_free"}), *facts]))
    assert replay_facts(path).equal is True
    with pytest.raises(BadInput, match="cannot be replayed"):
        replay_facts(other)


def test_an_order_beside_facts_that_name_a_shipped_one_is_refused(recorded, capsys) -> None:
    path, _ = recorded
    assert main(["replay", "--facts", str(path), "--order", "sjf"]) == 2
    assert "the header says fcfs decided them" in capsys.readouterr().err


def test_an_empty_or_missing_facts_file_is_called_that(tmp_path, capsys) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for path, said in ((empty, "the facts file is empty"), (tmp_path / "no", "does not exist")):
        assert main(["replay", "--facts", str(path)]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert said in first
        assert "facts file" in first
        assert "trace" not in second
