"""Reading a config field by field: every value is checked, and an error names its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwisp.errors import BadConfig

MAX_LAYERS = 4096
MAX_SIZE = 2**31
_REQUIRED = object()


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping whose values are read as what they must be, or refused with their key."""

    values: Mapping[str, Any]
    prefix: str = ""
    notes: list[str] = field(default_factory=list)

    def _refuse(self, key: str, problem: str, todo: str) -> BadConfig:
        return BadConfig(f"{self.prefix}{key} {problem}", todo, key=self.prefix + key)

    def has(self, key: str) -> bool:
        """Return whether the key is there and not null."""
        return self.values.get(key) is not None

    def raw(self, key: str) -> Any:
        """Return the value as it is, None if absent."""
        return self.values.get(key)

    def _integer(self, key: str, default: object, least: int, most: int) -> int:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise self._refuse(key, "is missing", "add it to the config")
            return default  # type: ignore[return-value]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._refuse(key, f"is {_show(value)}, not a whole number", "correct the config")
        if not least <= value <= most:
            raise self._refuse(
                key, f"is {_show(value)}", f"give a whole number from {least} to {most:,}"
            )
        return value

    def size(self, key: str, default: Any = _REQUIRED) -> int:
        """Return a whole number of at least 1."""
        return self._integer(key, default, 1, MAX_SIZE)

    def count(self, key: str, default: Any = _REQUIRED) -> int:
        """Return a whole number of at least 0."""
        return self._integer(key, default, 0, MAX_SIZE)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._refuse(key, f"is {_show(value)}, not true or false", "correct the config")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """Return a string."""
        value = self.values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, str) or not value:
            raise self._refuse(key, f"is {_show(value)}, not a name", "correct the config")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list (of anything)."""
        value = self.values.get(key)
        if not isinstance(value, list | tuple):
            raise self._refuse(key, f"is {_show(value)}, not a list", "correct the config")
        return list(value)

    def sizes(self, key: str) -> list[int]:
        """Return a list of whole numbers of at least 0."""
        out = self.items(key)
        for value in out:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
                raise self._refuse(
                    key, f"holds {_show(value)}, not a whole number", "correct the config"
                )
        return out

    def section(self, key: str) -> Fields:
        """Return the fields of a nested object."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self._refuse(key, f"is {_show(value)}, not an object", "correct the config")
        return Fields(value, f"{self.prefix}{key}.", self.notes)

    def check_depth(self, num_layers: int, key: str) -> int:
        """Return `num_layers`, refused if no model has so many."""
        if num_layers > MAX_LAYERS:
            raise self._refuse(
                key, f"gives {num_layers:,} layers", f"no model has more than {MAX_LAYERS:,}"
            )
        return num_layers

    def conflict(self, key: str, problem: str) -> BadConfig:
        """Return the error for a value that contradicts another one."""
        return self._refuse(key, problem, "the config contradicts itself: correct one of the two")
