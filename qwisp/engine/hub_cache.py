"""`org/name` from the local Hugging Face cache. Nothing is downloaded from here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from qwisp.errors import BadInput

_NAME = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}")
_REVISION = re.compile(r"[0-9a-f]{7,64}")


def is_hub_name(text: str) -> bool:
    """Return whether a text looks like `org/name`.

    >>> is_hub_name("mlx-community/Qwen3-0.6B-4bit"), is_hub_name("./models/mine")
    (True, False)
    """
    return bool(_NAME.fullmatch(text)) and ".." not in text


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache that the Hugging Face tools use: `HF_HUB_CACHE`, `HF_HOME`, or the default.

    >>> str(cache_folder({"HF_HOME": "/models"}))
    '/models/hub'
    """
    env = os.environ if environ is None else environ
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    base = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = env.get("HF_HOME") or f"{base}/huggingface"
    return Path(home).expanduser() / "hub"


def find_in_cache(name: str, folder: Path | None = None) -> Path:
    """Return the snapshot folder of `org/name`: the one `main` points to, else the only one.

    Raises `BadInput` saying how to get it when it is not there, or not wholly.
    """
    cache = folder or cache_folder()
    repo = cache / f"models--{name.replace('/', '--')}"
    get_it = f"get it with `hf download {name}`, or give a folder"
    if not repo.is_dir():
        raise BadInput(f"{name} is not in the local cache {cache}", get_it)
    snapshot = _snapshot(repo)
    if snapshot is None:
        raise BadInput(f"{name} has no complete download in {cache}", get_it)
    if not (snapshot / "config.json").is_file() or not list(snapshot.glob("*.safetensors")):
        raise BadInput(f"{name} in {cache} lacks config.json or its weights", get_it)
    return snapshot


def _snapshot(repo: Path) -> Path | None:
    found = sorted(path for path in (repo / "snapshots").glob("*") if path.is_dir())
    main = repo / "refs" / "main"
    if main.is_file():
        revision = main.read_text("utf-8", errors="replace").strip()
        if _REVISION.fullmatch(revision) and (repo / "snapshots" / revision).is_dir():
            return repo / "snapshots" / revision
        return None
    return found[0] if len(found) == 1 else None
