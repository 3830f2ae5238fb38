"""The matrix: every cell from the projection, blank where nobody measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qwisp.cli.matrix import command
from qwisp.memory import calibration
from qwisp.memory.matrix import matrix
from qwisp.spec.catalog import load_machine, model_names
from qwisp.units import MIB

MACHINES = [load_machine(name) for name in ("m4-16gb", "m5-max-36gb", "h200-141gb")]


def test_every_rung_of_every_model_and_machine_has_a_cell():
    cells = matrix(model_names(), MACHINES)
    assert len(cells) == len(model_names()) * 9 * len(MACHINES)
    assert all(cell.cache_bytes > 0 for cell in cells)


def test_unmeasured_cells_stay_blank():
    cells = matrix(model_names(), MACHINES)
    blank = [cell for cell in cells if cell.needs_bytes is None]
    assert {cell.model for cell in blank if cell.machine == "m4-16gb"} == {"qwen3.8-flash-next"}
    assert all(cell.needs_bytes is None for cell in cells if cell.machine == "h200-141gb")
    assert all((cell.fits, cell.headroom_bytes) == (None, None) for cell in blank)
    assert all(cell.provenance == "unmeasured" for cell in blank)


def test_a_measured_cell_carries_its_measurement_and_lies_above_it():
    cells = matrix(["gemma-4-26b-a4b"], [load_machine("m5-max-36gb")])
    measured = {c.context_tokens: c for c in cells if c.measured_bytes is not None}
    assert {n: c.measured_bytes // MIB for n, c in measured.items()} == {
        65536: 3441,
        98304: 4082,
        131072: 4714,
        196608: 6032,
        262144: 7320,
    }
    assert all(c.needs_bytes >= c.measured_bytes for c in measured.values())
    assert all(c.provenance == "measured here" for c in cells)


def test_other_slots_have_no_measurement():
    cells = matrix(["gemma-4-26b-a4b"], [load_machine("m5-max-36gb")], slots_per_layer=32)
    assert all(cell.measured_bytes is None for cell in cells)


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_validate_exits_0_and_its_document_says_why():
    result = run("--validate", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["passed"] is True
    assert len(document["points"]) == 19


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("memory-fieldfare.json", "metal_scratch_bytes"),
        ("memory-fieldfare.json", "process_bytes"),
        ("memory-fieldfare.json", "prompt_bytes_per_token"),
        ("memory-expert-residency.json", "base_bytes"),
    ],
)
def test_validate_exits_1_when_any_constant_slips_by_five_percent(
    name: str, key: str, tmp_path, monkeypatch
):
    original = calibration.data_path
    values = json.loads(original("calibration", name).read_text())
    values["constants"][key] = values["constants"][key] * 95 // 100
    (tmp_path / name).write_text(json.dumps(values))
    monkeypatch.setattr(
        calibration,
        "data_path",
        lambda *parts: tmp_path / name if parts[-1] == name else original(*parts),
    )
    calibration.load_calibration.cache_clear()
    calibration.load_residency.cache_clear()
    try:
        result = run("--validate")
    finally:
        calibration.load_calibration.cache_clear()
        calibration.load_residency.cache_clear()
    assert result.exit_code == 1
    assert "UNDER" in result.stdout
    assert "FAIL" in result.stdout


def test_text_markdown_csv_and_json_show_the_same_cells():
    text = run("--machine", "m4-16gb", "--model", "gemma-4-26b-a4b").stdout
    markdown = run("--machine", "m4-16gb", "--model", "gemma-4-26b-a4b", "--markdown").stdout
    rows = json.loads(run("--machine", "m4-16gb", "--model", "gemma-4-26b-a4b", "--json").stdout)
    table = run("--machine", "m4-16gb", "--model", "gemma-4-26b-a4b", "--csv").stdout
    assert len(rows["rows"]) == 9
    assert len(table.splitlines()) == 10
    assert markdown.count("\n|") >= 10
    for rung in ("4K", "256K"):
        assert rung in text
        assert rung in markdown


@pytest.mark.parametrize("arguments", [("--model", "nope"), ("--machine", "nope")])
def test_an_unknown_name_is_refused_with_the_known_ones(arguments):
    from qwisp.errors import BadInput

    with pytest.raises(BadInput, match="nope"):
        run(*arguments)
