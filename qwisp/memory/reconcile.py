"""Predict what real allocators printed, row by row, from layer geometry and dialects alone.

A row describes a model by its layer groups, an engine with its options, and the MiB its log showed.
Nothing here knows a row's name: a row that the dialects cannot express is reported as not modelled,
with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from qwisp.errors import BadConfig, BadInput, QwispError
from qwisp.memory.dialect import Terms
from qwisp.memory.dialects import DIALECTS, dialect
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.fields import Fields
from qwisp.spec.geometry import layers_from_geometry
from qwisp.spec.model import ModelSpec
from qwisp.units import MIB

MAX_TRUTH_BYTES = 64 * 1024**2
OPTION_FIELDS = {
    "unified": "unified",
    "ubatch": "ubatch_tokens",
    "pad": "pad_cells",
    "swa_full": "swa_full",
    "flash_attn": "flash_attn",
    "draft_copies": "draft_copies",
    "chunk": "chunk_tokens",
    "tensor_parallel": "tensor_parallel",
    "pool_tokens": "pool_tokens",
    "mla_latent": "mla_latent",
}
"""Options as the table spells them, and the dialect fields they set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """One row: what was predicted (None if it is not modelled), and what was measured."""

    id: str
    engine: str
    model: str
    part: str
    predicted_bytes: int | None
    measured_mib: Decimal
    tolerance_mib: Decimal
    reason: str = ""

    @property
    def difference_mib(self) -> Fraction | None:
        """Predicted less measured."""
        if self.predicted_bytes is None:
            return None
        return Fraction(self.predicted_bytes, MIB) - Fraction(self.measured_mib)

    @property
    def verdict(self) -> str:
        """One of reproduced, missed, not modelled."""
        if self.difference_mib is None:
            return "not modelled"
        within = abs(self.difference_mib) <= Fraction(self.tolerance_mib)
        return "reproduced" if within else "missed"


def read_truth(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of a truth file.

    Raises `BadInput` for a file that cannot be read, is no JSON list of objects, or has no rows.
    """
    try:
        if path.stat().st_size > MAX_TRUTH_BYTES:
            raise BadInput(f"{path} is larger than 64 MiB", "give a table of allocator rows")
        rows = json.loads(path.read_text("utf-8"), parse_float=Decimal)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", "give a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}", "give a list of rows") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise BadInput(f"{path} is not a list of rows", "give a list of objects, at least one")
    return rows


def reconcile(rows: Sequence[Mapping[str, Any]]) -> list[Reconciled]:
    """Return each row with its prediction, in order.

    Raises `BadInput` for a row without a measured value.
    """
    return [_reconcile_row(index, row) for index, row in enumerate(rows)]


def _reconcile_row(index: int, row: Mapping[str, Any]) -> Reconciled:
    predicted, reason = None, ""
    try:
        predicted = predict_bytes(row)
    except BadConfig as error:
        reason = f"geometry: {error.what}"
    except QwispError as error:
        reason = error.what
    return Reconciled(
        id=str(row.get("id", index)),
        engine=str(row.get("engine")),
        model=str(row.get("model")),
        part=str(row.get("part")),
        predicted_bytes=predicted,
        measured_mib=_decimal(row, "measured_mib", index),
        tolerance_mib=_decimal(row, "tolerance_mib", index),
        reason=reason,
    )


def _decimal(row: Mapping[str, Any], key: str, index: int) -> Decimal:
    value = row.get(key)
    good = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not good or not (number := Decimal(str(value))).is_finite() or number < 0:
        raise BadInput(
            f"row {row.get('id', index)}: {key} is {str(value)[:40]!r}", "give a size in MiB"
        )
    return number


def predict_bytes(row: Mapping[str, Any]) -> int:
    """Return the bytes that the row's engine allocates for the row's part.

    Raises `QwispError` with the reason for a row that the dialects cannot express.
    """
    engine = row.get("engine")
    if not isinstance(engine, str) or engine not in DIALECTS:
        raise BadInput(f"engine {str(engine)[:40]!r} has no dialect", "add one")
    spec = ModelSpec(
        name=str(row.get("model")),
        family="geometry",
        layers=layers_from_geometry(row.get("geometry")),
    )
    rules = dialect(engine, _options(engine, row))
    part = row.get("part")
    context = row.get("context")
    if context is None:
        if part != "state" and getattr(rules, "pool_tokens", None) is None:
            raise BadInput("no context is given", "give one, or a pool")
        context = 1
    return part_bytes(cache_bytes(spec, context, rules).terms, part)


def _options(engine: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dialect's fields from the row; what an engine does not have must be at rest."""
    given = row.get("options") or {}
    if not isinstance(given, Mapping):
        raise BadInput("options is not an object", "write {} for none")
    fields = Fields(row)
    known = DIALECTS[engine].__dataclass_fields__
    options: dict[str, Any] = {
        key: fields.text(key, None) for key in ("k_type", "v_type") if fields.has(key)
    }
    for option, value in given.items():
        field = OPTION_FIELDS.get(option)
        if field is None:
            raise BadInput(f"option {str(option)[:40]!r} is not modelled", "add it to a dialect")
        if field in known:
            options[field] = value
        elif value not in _AT_REST.get(option, ()):
            raise BadInput(f"{engine} has no option {option!r}", "leave it out")
    sequences = fields.size("n_seq", 1)
    if "n_seq" in known:
        options["n_seq"] = sequences
    elif sequences != 1:
        raise BadInput(f"{engine} holds one sequence, not {sequences}", "give n_seq 1")
    return options


_AT_REST: dict[str, tuple[Any, ...]] = {
    "unified": (False, None),
    "swa_full": (False, None),
    "flash_attn": (True, None),
    "draft_copies": (0, None),
    "tensor_parallel": (1, None),
    "mla_latent": (True, None),
    "pool_tokens": (None,),
    "chunk": (None,),
    "ubatch": (None,),
    "pad": (None,),
}
"""Values with which an option changes nothing in an engine that does not have it."""


def part_bytes(terms: Terms, part: object) -> int:
    """Return the bytes of the part of the caches that a log line is about.

    >>> part_bytes(Terms(full_key_bytes=3, state_bytes=2), "all")
    5
    """
    match part:
        case "all":
            return sum(terms)
        case "full":
            return terms.full_key_bytes + terms.full_value_bytes + terms.pooled_bytes
        case "sliding":
            return terms.ring_key_bytes + terms.ring_value_bytes
        case "state":
            return terms.state_bytes + terms.conv_bytes
        case "k":
            return terms.full_key_bytes + terms.ring_key_bytes
        case "v":
            return terms.full_value_bytes + terms.ring_value_bytes
    raise BadInput(f"part {str(part)[:40]!r} is not known", "use all, full, sliding, state, k or v")
