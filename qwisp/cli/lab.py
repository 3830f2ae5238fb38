"""`qwisp lab`: JupyterLab on the notebooks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

import qwisp
from qwisp.errors import BadInput

_PACKAGE = Path(qwisp.__file__).parent


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(folder: Path | None, port: int | None, no_browser: bool) -> None:
    """Open JupyterLab on FOLDER (default: the notebooks that come with qwisp)."""
    words = [sys.executable, "-m", "jupyterlab", str(notebooks_folder(folder, Path.cwd()))]
    if port is not None:
        words.append(f"--port={port}")
    if no_browser:
        words.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # as in containers, where there is nobody else
    os.execv(sys.executable, words)


def notebooks_folder(asked: Path | None, here: Path) -> Path:
    """Return the folder to open.

    That is the asked one, `notebooks/` in `here`, the checkout's own, or a fresh `notebooks/` in
    `here` with copies of those an installed package carries, so that nobody edits the package.
    """
    if asked is not None:
        if not asked.is_dir():
            raise BadInput(f"{asked} is not a folder", "give a folder, or none for the notebooks")
        return asked
    for folder in (here / "notebooks", _PACKAGE.parent / "notebooks"):
        if any(folder.glob("*.ipynb")):
            return folder
    if not (_PACKAGE / "_notebooks").is_dir():
        raise BadInput("no notebooks beside this package", "run it in a checkout, or give a folder")
    shutil.copytree(_PACKAGE / "_notebooks", here / "notebooks", dirs_exist_ok=True)
    return here / "notebooks"
