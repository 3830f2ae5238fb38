"""Files that CONTRIBUTING.md shows, loaded as they stand there: what it teaches has to work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def shown(name: str) -> str:
    """Return the file of that name as CONTRIBUTING.md shows it."""
    return re.search(rf"`{re.escape(name)}`[^`]*```python\n(.*?)```", CONTRIBUTING, re.DOTALL)[1]


def load_shown(name: str, folder: Path) -> ModuleType:
    """Return the module of a shown file, written to `folder` under its own name and loaded."""
    path = folder / Path(name).name
    path.write_text(shown(name))
    spec = importlib.util.spec_from_file_location(f"shown_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
