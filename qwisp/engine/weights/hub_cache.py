"""`org/name` from the local Hugging Face cache. Nothing is downloaded from here."""

from __future__ import annotations

import re
from pathlib import Path

from qwisp.errors import BadInput

_NAME = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}")


def is_hub_name(text: str) -> bool:
    """Return whether a text looks like `org/name`.

    >>> is_hub_name("mlx-community/Qwen3-0.6B-4bit"), is_hub_name("./models/mine")
    (True, False)
    """
    return bool(_NAME.fullmatch(text)) and ".." not in text


def cache_folder() -> Path:
    """Return the cache of the Hugging Face tools: `HF_HUB_CACHE`, `HF_HOME`, or their default."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def find_in_cache(name: str) -> Path:
    """Return the snapshot folder of `org/name` that its branch `main` points to.

    Raises `BadInput` saying how to get it when it is not there, or not wholly.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    cache, get_it = cache_folder(), f"get it with `hf download {name}`, or give a folder"
    try:
        snapshot = Path(snapshot_download(name, cache_dir=cache, local_files_only=True))
    except HFValidationError as error:
        raise BadInput(f"{name}: {str(error).partition('.')[0]}", get_it) from None
    except LocalEntryNotFoundError:
        is_there = (cache / f"models--{name.replace('/', '--')}").is_dir()
        what = "has no complete download in" if is_there else "is not in the local cache"
        raise BadInput(f"{name} {what} {cache}", get_it) from None
    if snapshot.parent.name != "snapshots":  # a forged branch points out of the cache
        raise BadInput(f"{name} has no complete download in {cache}", get_it)
    if not (snapshot / "config.json").is_file() or not list(snapshot.glob("*.safetensors")):
        raise BadInput(f"{name} in {cache} lacks config.json or its weights", get_it)
    return snapshot
