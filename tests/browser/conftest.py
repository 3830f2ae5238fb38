"""A headless Chromium that notes page errors and every request that would leave this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class Watch:
    """What went wrong on a page: `errors` it raised, `away` addresses it wanted elsewhere."""

    def __init__(self, page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.away: set[str] = set()
        page.on("pageerror", lambda error: self.errors.append(str(error)[:300]))
        page.on("request", lambda request: self._see(request.url))
        page.on("websocket", lambda ws: self._see(ws.url))

    def _see(self, url: str) -> None:
        local = ("http://127.0.0.1", "ws://127.0.0.1", "file:", "data:", "blob:", "about:")
        if not url.startswith(local):
            self.away.add(url[:120])


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A fresh page under watch; skips where there is no Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: install the system's chromium package")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 1400})
        page.set_default_timeout(60_000)
        yield Watch(page)
        browser.close()


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A JupyterLab of its own on an empty folder: its address with `{}` for a notebook, the folder.

    Settings, kernels' histories and workspaces stay in the test's folder.
    """
    root = tmp_path / "notebooks"
    root.mkdir()
    settings = tmp_path / "settings" / "@jupyterlab"
    for name, values in {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = os.environ | {name: str(tmp_path / folder) for name, folder in own.items()}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        *("-m", "jupyterlab", "--no-browser", "--allow-root"),
        f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1",
        "--IdentityProvider.token=t",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
    ]
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *words], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _until_it_answers(f"{address}/api?token=t", server, tmp_path / "lab.log")
        yield address + "/lab/tree/{}?token=t", root
    finally:
        server.terminate()
        server.wait(20)


def _until_it_answers(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(300):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"JupyterLab does not answer: {log.read_text()[-500:]}")
