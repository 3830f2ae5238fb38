"""Receipts survive kills, torn lines, second writers and full disks; nothing is measured twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from qwisp.errors import BadInput
from qwisp.receipts import Measured, Receipt, ReceiptBook, Stamp, mean, read_receipts, same_kind
from qwisp.receipts.record import hash_inputs
from qwisp.receipts.stamp import git_state

STAMP = Stamp(
    machine=(("processor", "test"),), packages=(("qwisp", "0"),), commit="abc", is_dirty=False
)


def book(path: Path, **settings: str) -> ReceiptBook:
    ticks = itertools.count(100)
    return ReceiptBook(path, stamp=STAMP, clock=lambda: float(next(ticks)), **settings)


def fill(path: Path, num: int) -> list[Receipt]:
    with book(path) as receipts:
        return [
            receipts.once("square", {"i": i}, lambda i=i: Measured(i * i, "1", "arithmetic"))
            for i in range(num)
        ]


def test_a_receipt_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with book(path, study="s", criteria_hash="c") as receipts:
        value = {"rates": [1.5, 2], "ok": True, "name": "x\n\u2028é"}
        written = receipts.once(
            "m",
            {"n": 3},
            lambda: Measured(value, "tok/s", "wall clock"),
            model="tiny",
            model_hash="f00",
            seed=7,
        )
    assert read_receipts(path).all == (written,)
    assert (written.started_s, written.ended_s) == (100.0, 101.0)
    assert (written.study, written.criteria_hash, written.commit) == ("s", "c", "abc")
    assert written.machine == {"processor": "test"}


def test_known_inputs_are_not_measured_again_not_even_by_a_later_run(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    first = fill(path, 3)

    def never() -> Measured:
        raise AssertionError("measured twice")

    with book(path) as receipts:
        assert receipts.receipts == tuple(first)
        assert [receipts.once("square", {"i": i}, never) for i in range(3)] == first
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "change", [{"metric": "cube"}, {"inputs": {"i": 2}}, {"model": "m"}, {"seed": 1}]
)
def test_any_other_input_is_measured(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "receipts.jsonl"
    settings = {"metric": "square", "inputs": {"i": 1}, "model": "", "seed": None}
    with book(path) as receipts:
        for words in (settings, settings | change):
            extra = {"model": words["model"], "seed": words["seed"]}
            measure = lambda: Measured(1, "1", "x")  # noqa: E731
            receipts.once(words["metric"], words["inputs"], measure, **extra)
        assert len(receipts.receipts) == 2


def test_a_probe_that_fails_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with book(path) as receipts:
        with pytest.raises(KeyboardInterrupt):
            receipts.once("m", {}, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(BadInput, match="cannot hold"):
            receipts.once("m", {}, lambda: Measured(float("nan"), "s", "x"))
    assert path.read_bytes() == b""


@pytest.mark.parametrize("kept", [1, 30, 200])
def test_a_torn_last_line_is_reported_skipped_and_healed(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "receipts.jsonl"
    first = fill(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])
    found = read_receipts(path)
    assert found.all == tuple(first[:2])
    assert found.torn == lines[2][:kept].decode()
    with book(path) as receipts:
        assert receipts.torn == found.torn
    assert path.read_bytes() == b"".join(lines[:2])
    assert len(fill(path, 4)) == 4
    assert len(read_receipts(path).all) == 4


def test_a_whole_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    first = fill(path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_receipts(path) == (tuple(first), "")
    fill(path, 3)
    assert len(read_receipts(path).all) == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2 is not a receipt"),
        ("[]", "line 2 is not a receipt: not an object"),
        ('{"schema": 99}', "schema '99'"),
        ('{"schema": 1}', "metric is 'None'"),
    ],
)
def test_a_bad_line_in_the_middle_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 2)
    good = path.read_text().splitlines()
    path.write_text("\n".join([good[0], line, good[1], ""]))
    with pytest.raises(BadInput, match=complaint):
        read_receipts(path)
    with pytest.raises(BadInput, match=complaint):
        book(path)


def test_blank_lines_carry_nothing_but_keep_the_numbering(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 1)
    path.write_text("\n" + path.read_text() + " \n")
    assert len(read_receipts(path).all) == 1
    path.write_text(path.read_text() + "5\n")
    with pytest.raises(BadInput, match="line 4 is not a receipt: not an object"):
        read_receipts(path)


KEYS = [field.name for field in fields(Receipt)]


@pytest.mark.parametrize("key", KEYS)
def test_every_field_of_a_line_is_checked(tmp_path: Path, key: str) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 1)
    record = json.loads(path.read_text())
    del record[key]
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadInput, match=key):
        read_receipts(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"started_s": True}, "started_s is 'True'"),
        ({"ended_s": "1"}, "ended_s is '1'"),
        ({"seed": False}, "seed is 'False'"),
        ({"seed": 1.0}, "seed is '1.0'"),
        ({"is_dirty": 0}, "is_dirty is '0'"),
        ({"machine": []}, "machine is"),
        ({"model": None}, "model is 'None'"),
        ({"schema": 0}, "has schema '0', this qwisp reads 1"),
        ({"schema": 2}, "has schema '2', this qwisp reads 1"),
        ({"zeal": 1}, "unknown key 'zeal'"),
        ({"study": "s"}, "line 1 was edited"),
        ({"metric": "cube"}, "line 1 was edited"),
        ({"model_hash": "f00"}, "line 1 was edited"),
        ({"started_s": float("nan")}, "NaN is not a number"),
    ],
)
def test_every_type_of_a_line_is_checked(tmp_path: Path, change: dict, complaint: str) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 1)
    record = json.loads(path.read_text()) | change
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadInput, match=complaint):
        read_receipts(path)


def test_inputs_are_hashed_as_canonical_json() -> None:
    text = b'["",{"a":[1,2.5,null],"b":"\\u00e9"}]'
    assert hash_inputs(["", {"b": "é", "a": [1, 2.5, None]}]) == sha256(text).hexdigest()
    with pytest.raises(BadInput, match="cannot hold"):
        hash_inputs(float("inf"))


def test_the_first_of_two_threads_measures_and_both_get_its_receipt(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with book(path) as receipts:
        inner: list[Receipt] = []

        def measure() -> Measured:
            meanwhile = lambda: inner.append(  # noqa: E731  another thread, while this one measures
                receipts.once("m", {}, lambda: Measured("first", "s", "x"))
            )
            thread = Thread(target=meanwhile)
            thread.start()
            thread.join()
            return Measured("second", "s", "x")

        assert receipts.once("m", {}, measure) is inner[0]
        assert receipts.receipts == tuple(inner)
    assert [one.value for one in read_receipts(path).all] == ["first"]


def test_every_receipt_of_many_threads_is_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with book(path) as receipts, ThreadPoolExecutor(8) as pool:
        ask = lambda i: receipts.once("m", {"i": i % 20}, lambda: Measured([i] * 500, "1", "x"))  # noqa: E731
        assert len({one.id for one in pool.map(ask, range(80))}) == 20
    assert len(read_receipts(path).all) == len(path.read_bytes().splitlines()) == 20


def test_a_book_that_cannot_be_read_gives_up_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "receipts.jsonl"
    fill(path, 1)
    good = path.read_bytes()
    path.write_bytes(b"{}\n" + good)
    with pytest.raises(BadInput, match="line 1"):
        book(path)
    path.write_bytes(good)
    one = book(path)
    one.close()
    one.close()
    assert len(fill(path, 2)) == 2


def test_a_second_writer_is_refused_and_a_third_may_follow(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with book(path), pytest.raises(BadInput, match="another run"):
        book(path)
    with book(path):
        pass


def test_a_file_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        book(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput):
        book(tmp_path / "file" / "receipts.jsonl")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 1)
    before = path.read_bytes()
    write = os.write

    def half_then_full(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) - 50])

    with book(path) as receipts:
        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(BadInput, match="No space"):
            receipts.once("m", {}, lambda: Measured(1, "s", "x"))
        monkeypatch.undo()
    assert path.read_bytes() == before


WRITER = """
import sys, time
from qwisp.receipts import Measured, ReceiptBook, Stamp
stamp = Stamp(machine=(), packages=(), commit="", is_dirty=False)
with ReceiptBook(sys.argv[1], stamp=stamp, clock=time.time) as book:
    print("open", flush=True)
    for i in range(10_000):
        book.once("big", {"i": i}, lambda: Measured([i] * 2000, "1", "x"))
        print(i, flush=True)
"""


def test_kill_9_at_any_instant_loses_at_most_the_probe_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    rng = random.Random(5)
    num_before = 0
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
        out = writer.stdout
        assert out is not None
        assert out.readline() == b"open\n"
        for _ in range(num_before + rng.randrange(1, 40)):
            out.readline()
        writer.send_signal(signal.SIGKILL)
        rest = out.read().split()
        writer.wait()
        out.close()
        found = read_receipts(path).all
        reported = int(rest[-1]) + 1 if rest else num_before
        assert [receipt.inputs["i"] for receipt in found] == list(range(len(found)))
        assert reported <= len(found)
        assert num_before < len(found)  # it went on where the killed one stopped
        num_before = len(found)


def test_receipts_of_different_origin_are_never_averaged(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    fill(path, 3)
    receipts = read_receipts(path).all
    assert mean(receipts) == 5 / 3
    changes = {
        "model": "other",
        "commit": "def",
        "instrument": "stopwatch",
        "unit": "ms",
        "is_dirty": True,
        "machine": {"processor": "other"},
        "metric": "cube",
        "study": "other",
        "model_hash": "f00",
    }
    for key, value in changes.items():
        record = json.loads(path.read_text().splitlines()[1])
        changed = Receipt(**(record | {key: value}))
        with pytest.raises(BadInput, match=f"differ in {key}"):
            mean([receipts[0], changed])
        with pytest.raises(BadInput):
            same_kind([receipts[0], changed])


def test_only_numbers_are_averaged(tmp_path: Path) -> None:
    with book(tmp_path / "receipts.jsonl") as receipts:
        yes, no, text, none = (
            receipts.once("ok", {"i": i}, lambda value=value: Measured(value, "", "x"))
            for i, value in enumerate((True, False, "1", None))
        )
    assert mean([yes, no, yes, yes]) == 0.75
    assert len({yes.id, no.id, text.id}) == 3
    assert yes.id == yes.inputs_hash[:12]
    for one in (text, none):
        with pytest.raises(BadInput, match="only numbers"):
            mean([yes, one])
    with pytest.raises(BadInput, match="mean of 0"):
        mean([])


def test_the_stamp_names_this_machine_and_no_user() -> None:
    stamp = Stamp.here()
    assert dict(stamp.machine)["cores"] == str(os.cpu_count())
    assert dict(stamp.packages)["qwisp"]
    assert os.uname().nodename not in dict(stamp.machine).values()


def test_the_commit_is_dirty_by_sources_but_not_by_results(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", tmp_path, *name, *words], check=True, capture_output=True)

    assert git_state(tmp_path) == ("", False)
    git("init", "-q")
    for name in ("a.py", "experiments/x/receipts.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    commit, is_dirty = git_state(tmp_path)
    assert (len(commit), is_dirty) == (40, False)
    (tmp_path / "experiments/x/receipts.jsonl").write_text("2")
    assert git_state(tmp_path) == (commit, False)
    (tmp_path / "a.py").write_text("2")
    assert git_state(tmp_path) == (commit, True)
    assert git_state(tmp_path / "experiments") == ("", False)
