"""Machines: what they hold, and what one process may take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from qwisp.errors import BadInput
from qwisp.spec.catalog import load_machine, machine_names
from qwisp.spec.detect import (
    detect_machine,
    linux_machine,
    mac_machine,
    nvidia_machine,
    nvml_machine,
)
from qwisp.spec.machine import MachineSpec
from qwisp.units import GIB


@pytest.mark.parametrize(
    ("name", "gib"),
    [("m1-max-64gb", 64), ("m4-16gb", 16), ("m5-max-36gb", 36), ("m5-ultra-256gb", 256)],
)
def test_gigabytes_of_unified_memory_are_gib_and_seventy_percent_is_usable(name: str, gib: int):
    machine = load_machine(name)
    assert machine.memory_bytes == gib * GIB
    assert machine.usable_bytes == gib * GIB * 7 // 10


def test_the_h200_gives_its_vram_less_what_the_driver_reserves():
    machine = load_machine("h200-141gb")
    assert machine.usable_bytes == machine.limit_bytes == 150109880320
    assert "VRAM" in machine.usable_rule


def test_every_catalog_machine_names_its_source():
    assert all(load_machine(name).source for name in machine_names() if name != "this")


def test_an_unknown_machine_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match="m1-max-64gb"):
        load_machine("m1-max-32gb")


@pytest.mark.parametrize(("memory", "limit"), [(0, None), (10, 0), (10, 11), (-1, None)])
def test_an_impossible_machine_is_refused(memory: int, limit: int | None):
    with pytest.raises(BadInput):
        MachineSpec(name="x", title="x", memory_bytes=memory, limit_bytes=limit)


def linux_root(tmp_path: Path, files: dict[str, str], cgroup: str = "0::/a/b\n") -> Path:
    files = {"proc/meminfo": "MemTotal: 16384 kB\n", "proc/self/cgroup": cgroup, **files}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_linux_without_a_limit_takes_a_share_of_its_memory(tmp_path: Path):
    root = linux_root(tmp_path, {"sys/fs/cgroup/a/b/memory.max": "max\n"})
    machine = linux_machine(root)
    assert (machine.memory_bytes, machine.limit_bytes) == (16 << 20, None)


def test_the_tightest_cgroup_above_us_binds(tmp_path: Path):
    root = linux_root(
        tmp_path,
        {
            "sys/fs/cgroup/a/b/memory.max": "12582912",
            "sys/fs/cgroup/a/memory.max": "8388608",
        },
    )
    assert linux_machine(root).usable_bytes == 8388608
    assert linux_machine(root).limit_name == "cgroup limit"


def test_cgroup_v1_prints_a_huge_number_for_no_limit(tmp_path: Path):
    files = {
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    root = linux_root(tmp_path, files, "4:memory:/a\n")
    assert linux_machine(root).limit_bytes is None
    (tmp_path / "sys/fs/cgroup/memory/a/memory.limit_in_bytes").write_text("4194304")
    assert linux_machine(root).usable_bytes == 4194304


def test_a_machine_without_meminfo_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="MemTotal"):
        linux_machine(tmp_path)


def test_a_mac_uses_its_wired_limit_where_somebody_set_one():
    values = {"hw.memsize": str(64 * GIB), "iogpu.wired_limit_mb": "57344"}
    assert mac_machine(values.get).usable_bytes == 56 * GIB
    values["iogpu.wired_limit_mb"] = "0"
    assert mac_machine(values.get).usable_bytes == 64 * GIB * 7 // 10
    with pytest.raises(BadInput, match=r"hw\.memsize"):
        mac_machine({}.get)


class Nvml:
    """One H200, as its driver 580.159.04 described it."""

    nvmlMemory_v2 = "v2"

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle, version):
        assert version == "v2"
        return SimpleNamespace(total=150754820096, reserved=644939776)


def test_a_device_gives_its_memory_less_what_the_driver_reserves():
    machine = nvml_machine(Nvml())
    assert machine.usable_bytes == load_machine("h200-141gb").usable_bytes
    printed = nvidia_machine("NVIDIA H200, 143771, 616\nNVIDIA H200, 143771, 616\n")
    # nvidia-smi prints whole MiB, so it can be off by one for each of the two figures.
    assert abs(printed.usable_bytes - machine.usable_bytes) <= 2 << 20
    assert (machine.memory_kind, printed.title) == ("vram", machine.title)


@pytest.mark.parametrize("text", ["", "No devices were found", "NVIDIA H200, [N/A], 616"])
def test_an_answer_without_a_device_is_no_machine(text: str):
    assert nvidia_machine(text) is None


def test_this_machine_is_detected():
    machine = load_machine("this")
    assert machine == detect_machine()
    assert machine.name == "this"
    assert machine.memory_bytes > 256 << 20
