"""One-line changes of the core that the tests named beside them must notice; lists in *.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Mutation(NamedTuple):
    """Replace `old`, which stands once in `file`, by `new`: one of `tests` must fail.

    `unseen` says why no caller can see the change; such a mutation is kept on record, not run.
    """

    id: str
    file: str
    old: str
    new: str
    tests: str = ""
    unseen: str = ""

    def applied_to(self, text: str) -> str:
        """Return the changed text. Raises `ValueError` unless `old` stands in it exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.id}: {self.old!r} stands {count} times in {self.file}")
        return text.replace(self.old, self.new)


def load() -> list[Mutation]:
    """Return every mutation of every list, in the order of the files."""
    return [
        Mutation(**row)
        for path in sorted(HERE.glob("*.toml"))
        for row in tomllib.loads(path.read_text("utf-8"))["mutation"]
    ]
