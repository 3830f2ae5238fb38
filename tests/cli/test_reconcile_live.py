"""`reconcile --live`: every tiny model's arena holds the predicted bytes, and a lie is noticed."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

from qwisp.cli.reconcile import command
from qwisp.engine.model.decoder import Decoder
from qwisp.engine.proof.live import reconcile_live
from qwisp.engine.spec.tiny import MORE_TINY, TINY
from qwisp.errors import BadInput

pytestmark = pytest.mark.mlx


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_every_row_is_reproduced_to_the_byte():
    result = run("--live", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["missed"], document["not_modelled"]) == (0, 0, 0)
    parts = {row["part"] for row in document["rows"]}
    cuts = {part for part in parts if not part.startswith(("weights", "full", "sl", "st", "all"))}
    assert parts - cuts == {
        "weights",
        "weights, MLX active",
        "full",
        "sliding",
        "state",
        "all, MLX active",
    }
    assert {"whole_window:1", "fixed_arena:1024", "fixed_arena:16384", "1024,512x2"} < cuts
    assert sum(row["id"].endswith("-65536-per_request") for row in document["rows"]) == 18
    families = {row["model"] for row in document["rows"]}
    assert families == {f"tiny:{name}" for name in (*TINY, *MORE_TINY)}
    assert all(row["difference_mib"] == 0 for row in document["rows"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_reproduced_too(dtype):
    rows = reconcile_live(contexts=[500], dtype=dtype)
    assert {row.verdict for row in rows} == {"reproduced"}


def test_a_checkpoint_is_reconciled_by_its_own_shapes():
    """Packed and plain weights mixed, experts and taps in fp32: all told by name and shape."""
    result = run("--live", "--model", "recall_ring", "--context", "8K", "--csv")
    assert result.exit_code == 0
    assert "recall_ring-weights,qwisp,weights," in result.stdout
    assert "recall_ring-8192,qwisp,sliding," in result.stdout
    assert "12 of 12 rows reproduced" in result.stderr


def test_weights_that_are_kept_twice_are_a_miss(monkeypatch: pytest.MonkeyPatch):
    honest = Decoder.arrays.fget
    twice = property(lambda self: [*honest(self), honest(self)[0]])
    monkeypatch.setattr(Decoder, "arrays", twice)
    result = run("--live", "--model", "tiny:llama")
    assert result.exit_code == 1
    assert "missed" in result.stdout


def test_an_arena_that_allocates_a_row_too_many_is_a_miss(monkeypatch: pytest.MonkeyPatch):
    from qwisp.engine.proof import live

    honest = live.ArenaPlan.of_sessions
    monkeypatch.setattr(
        live.ArenaPlan, "of_sessions", lambda rows, chunk: honest([rows[0] + 1], chunk)
    )
    result = run("--live")
    assert result.exit_code == 1
    assert "missed" in result.stdout


def test_a_layout_that_forgets_its_other_lanes_is_a_miss(monkeypatch: pytest.MonkeyPatch):
    """One session's state and ring for a budget, and every lane's in the arena."""
    from qwisp.scheduling.arena_rows import ArenaRows, rows_bytes

    def of_one(self: ArenaRows, size) -> int:
        return sum(rows_bytes(size, n) for n in self.runs) + size.lane_bytes(self.slot_rows[0])

    monkeypatch.setattr(ArenaRows, "num_bytes", of_one)
    result = run("--live", "--model", "tiny:gemma3", "--context", "1K", "--csv")
    rows = csv.DictReader(result.stdout.splitlines())
    missed = {row["id"].rpartition("-")[2] for row in rows if row["verdict"] == "missed"}
    assert result.exit_code == 1
    # Lists and equal sessions have as many rings as sessions, so they are forgotten too.
    assert missed >= {"per_request", "sized"}


@pytest.mark.parametrize(
    "arguments",
    [(), ("--live", "--truth", "x.json"), ("--truth", "x.json", "--model", "tiny")],
)
def test_one_source_of_truth_is_needed(arguments):
    with pytest.raises(BadInput, match="--truth"):
        run(*arguments)
