"""`reconcile --live`: every tiny model's arena holds the predicted bytes, and a lie is noticed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qwisp.cli.reconcile import command
from qwisp.errors import BadInput

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_every_row_is_reproduced_to_the_byte():
    result = run("--live", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["missed"], document["not_modelled"]) == (0, 0, 0)
    assert {row["part"] for row in document["rows"]} == {
        "full",
        "sliding",
        "state",
        "all, MLX active",
    }
    assert all(row["difference_mib"] == 0 for row in document["rows"])


def test_an_arena_that_allocates_a_row_too_many_is_a_miss(monkeypatch: pytest.MonkeyPatch):
    from qwisp.engine import live

    honest = live.ArenaPlan.of_sessions
    monkeypatch.setattr(
        live.ArenaPlan, "of_sessions", lambda rows, chunk: honest([rows[0] + 1], chunk)
    )
    result = run("--live")
    assert result.exit_code == 1
    assert "missed" in result.stdout


@pytest.mark.parametrize("arguments", [(), ("--live", "--truth", "x.json")])
def test_one_source_of_truth_is_needed(arguments):
    with pytest.raises(BadInput, match="--truth"):
        run(*arguments)
