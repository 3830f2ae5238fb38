"""Instruments: what each platform prints becomes readings, and two instruments never meet."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qwisp.errors import BadInput
from qwisp.memory.instruments import (
    HEADLINES,
    Footprint,
    Reading,
    difference_bytes,
    linux,
    mac,
    nvidia,
)
from qwisp.units import GIB, MIB

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def as_dict(readings: list[Reading]) -> dict[str, int]:
    assert len({r.instrument for r in readings}) == len(readings)
    return {reading.instrument: reading.num_bytes for reading in readings}


def test_footprint_report_in_bytes_gives_footprint_peak_and_graphics_of_the_asked_process():
    text = recorded("footprint_bytes.txt")
    assert as_dict(mac.parse_footprint(text, 48211)) == {
        "phys_footprint": 6963593216,
        "phys_footprint_peak": 7017070592,
        "metal_heaps": 5638291456 + 20971520,
    }
    assert as_dict(mac.parse_footprint(text, 35425)) == {
        "phys_footprint": 2326528,
        "phys_footprint_peak": 3276800,
    }
    assert mac.parse_footprint(text, 1) == []


def test_footprint_report_in_its_own_units_is_binary():
    assert as_dict(mac.parse_footprint(recorded("footprint_formatted.txt"), 812)) == {
        "phys_footprint": 6641 * MIB,
        "phys_footprint_peak": 13 * GIB // 2,
        "metal_heaps": 5213 * MIB,
    }


def test_vmmap_summary_gives_footprint_and_peak():
    found = as_dict(mac.parse_vmmap(recorded("vmmap_summary.txt")))
    assert found == {
        "phys_footprint": round(6.5 * GIB),
        "phys_footprint_peak": round(6.6 * GIB),
    }


@pytest.mark.parametrize("text", ["", "footprint: no such process", "phys_footprint: -5 KB"])
def test_foreign_text_gives_no_reading_and_never_zero(text: str):
    assert mac.parse_footprint(text) == []


def rusage(resident: int, phys: int, peak: int) -> bytes:
    counters = [0] * 35
    counters[6], counters[7], counters[28] = resident, phys, peak
    return struct.pack("=16s35Q", b"u" * 16, *counters)


def test_rusage_buffer_gives_footprint_peak_and_rss_at_their_offsets():
    assert as_dict(mac.parse_rusage(rusage(1, 7, 9))) == {
        "phys_footprint": 7,
        "phys_footprint_peak": 9,
        "rss": 1,
    }
    assert as_dict(mac.parse_rusage(rusage(1, 9, 7)))["phys_footprint_peak"] == 9


def test_mac_sample_takes_the_system_call_first_and_the_tool_for_what_it_lacks():
    text = recorded("footprint_bytes.txt")
    both = mac.sample(48211, rusage=lambda pid: rusage(1, 7, 9), run=lambda command: text)
    assert as_dict(both) == {
        "phys_footprint": 7,
        "phys_footprint_peak": 9,
        "rss": 1,
        "metal_heaps": 5638291456 + 20971520,
    }
    with pytest.raises(BadInput, match="gave no footprint"):
        mac.sample(48211, rusage=lambda pid: None, run=lambda command: "")


def test_smaps_rollup_gives_pss_uss_rss():
    assert as_dict(linux.parse_smaps_rollup(recorded("smaps_rollup.txt"))) == {
        "pss": 702131 * 1024,
        "uss": (6920 + 612004) * 1024,
        "rss": 1389944 * 1024,
    }
    with pytest.raises(BadInput, match="no Pss"):
        linux.parse_smaps_rollup("")


def linux_root(tmp_path: Path, cgroup: str, files: dict[str, str]) -> Path:
    proc = tmp_path / "proc/77"
    proc.mkdir(parents=True)
    (proc / "smaps_rollup").write_text(recorded("smaps_rollup.txt"))
    (proc / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    (proc / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/a/b\n", {"a/b/memory.current": "5\n", "a/b/memory.peak": "6\n"}),
        (
            "4:memory:/a/b\n0::/\n",
            {"memory/a/b/memory.usage_in_bytes": "5", "memory/a/b/memory.max_usage_in_bytes": "6"},
        ),
    ],
    ids=["v2", "v1"],
)
def test_linux_sample_reads_both_cgroup_versions(tmp_path, cgroup, files):
    found = as_dict(linux.sample(77, linux_root(tmp_path, cgroup, files)))
    assert (found["cgroup"], found["cgroup_peak"], found["rss_peak"]) == (5, 6, 2048 * 1024)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_linux_sample_of_a_live_process_sees_memory_it_takes():
    """A child holds 64 MiB of its own; a fork after that shares them, which PSS alone halves."""
    code = (
        "import os, sys; held = bytearray(b'x') * (64 << 20); child = os.fork()\n"
        "if not child: sys.stdin.read(); os._exit(0)\n"
        "print(child, flush=True); sys.stdin.read(); os.waitpid(child, 0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            child = int(process.stdout.readline())
            found = Footprint.sample(child)
        finally:
            process.communicate("")
    assert found["rss"] >= 64 * MIB
    assert 32 * MIB <= found["pss"] < 64 * MIB
    assert found["uss"] < 32 * MIB
    assert found.headline == Reading("pss", found["pss"])


def test_a_process_that_is_gone_is_bad_input():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(BadInput):
        Footprint.sample(child.pid)
    with pytest.raises(BadInput, match="not above zero"):
        Footprint.sample(0)


class FakeNvml:
    """Two devices; process 411 on both, as NVML lists them."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, broken: bool = False):
        self.broken = broken

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        mine = SimpleNamespace(pid=411, usedGpuMemory=1616904192)
        other = SimpleNamespace(pid=9, usedGpuMemory=None)
        return [mine, other]


def test_nvml_sums_a_process_over_devices_and_is_silent_without_a_driver():
    assert nvidia.sample(411, FakeNvml()) == [Reading("nvml_process", 2 * 1616904192)]
    assert nvidia.sample(9, FakeNvml()) == []
    assert nvidia.sample(1, FakeNvml()) == []
    assert nvidia.sample(411, FakeNvml(broken=True)) == []


def test_smi_text_as_an_h200_printed_it():
    assert nvidia.parse_smi("411, 1542\n", 411) == [Reading("nvml_process", 1542 * MIB)]
    assert nvidia.parse_smi("411, [N/A]\n", 411) == []
    assert nvidia.parse_smi("No devices were found", 411) == []


def test_mlx_counters_come_from_the_object_that_is_given():
    counters = SimpleNamespace(
        get_active_memory=lambda: 3, get_cache_memory=lambda: 4, get_peak_memory=lambda: 5
    )
    found = Footprint.sample(os.getpid(), mlx_counters=counters)
    assert (found["mlx_active"], found["mlx_cache"], found["mlx_peak"]) == (3, 4, 5)


@pytest.mark.mlx
def test_mlx_counters_see_an_array_byte_for_byte():
    mx = pytest.importorskip("mlx.core")
    mx.synchronize()
    before = Footprint.sample(os.getpid(), mlx_counters=mx)
    held = mx.zeros((64 << 20,), dtype=mx.uint8)
    mx.eval(held)
    after = Footprint.sample(os.getpid(), mlx_counters=mx)
    assert after["mlx_active"] - before["mlx_active"] == held.nbytes == 64 << 20
    assert after["mlx_peak"] >= after["mlx_active"]
    del held
    freed = Footprint.sample(os.getpid(), mlx_counters=mx)
    assert freed["mlx_active"] == before["mlx_active"]


def test_the_headline_is_never_rss():
    assert not any("rss" in name for name in HEADLINES)
    with pytest.raises(BadInput, match="no headline"):
        _ = Footprint.of(1, [Reading("rss", 1), Reading("rss_peak", 2)]).headline
    mac_like = Footprint.of(1, [Reading("rss", 1075 * MIB), Reading("phys_footprint", 6641 * MIB)])
    assert mac_like.headline == Reading("phys_footprint", 6641 * MIB)


def test_two_instruments_are_never_compared():
    with pytest.raises(BadInput, match="cannot be compared"):
        difference_bytes(Reading("phys_footprint", 6641 * MIB), Reading("rss", 1075 * MIB))
    assert difference_bytes(Reading("rss", 5), Reading("rss", 7)) == -2


def test_an_absent_instrument_is_named_not_zero():
    with pytest.raises(BadInput, match="metal_heaps"):
        _ = Footprint.of(1, [Reading("pss", 1)])["metal_heaps"]
