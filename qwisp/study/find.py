"""Where studies are: `experiments/<id>/study.py`, exporting `study`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from qwisp.errors import BadInput, QwispError
from qwisp.study.declare import Study

_CHECKOUT = Path(__file__).resolve().parents[2] / "experiments"


def experiments_folder(asked: Path | None, here: Path) -> Path:
    """Return the asked folder, else `experiments` in `here`, else that of the checkout."""
    if asked is not None:
        if not asked.is_dir():
            raise BadInput(f"{asked} is not a folder", "name a folder of studies")
        return asked
    for folder in (here / "experiments", _CHECKOUT):
        if folder.is_dir():
            return folder
    raise BadInput("there is no folder experiments/ here", "give one with --experiments")


def study_ids(root: Path) -> list[str]:
    """Return the ids of all studies in `root`, sorted."""
    return sorted(path.parent.name for path in root.glob("*/study.py"))


def load_study(root: Path, id: str) -> Study:
    """Return the study `id`; its file may import others beside it: `from .other import thing`.

    Raises `BadInput` if there is none, or its file cannot be used.
    """
    known = study_ids(root)
    if id not in known:
        what = f"study {id[:80]!r} is not among the {len(known)} in {root}"
        raise BadInput(what, f"use one of: {', '.join(known) or 'none yet'}")
    path = root / id / "study.py"
    name = f"qwisp_study_{id}"
    for old in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
        del sys.modules[old]  # a copy of the study in another folder
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except QwispError:
        raise
    except Exception as error:  # whatever a study's own code does at import
        what = f"{path}: {type(error).__name__}: {error}"
        raise BadInput(what, "correct the study's file") from error
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise BadInput(f"{path} exports no `study`", "end it with: study = Study(...)")
    if study.id != id:
        raise BadInput(f"{path} holds the study {study.id!r}", "name the folder after the id")
    return study
