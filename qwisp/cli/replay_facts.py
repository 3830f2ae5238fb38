"""`qwisp replay --facts`: would this scheduler have decided what a real run did?"""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from qwisp.cli import output
from qwisp.cost import load_cost
from qwisp.errors import BadInput
from qwisp.facts.file import FactsHeader, read_facts
from qwisp.facts.header import READ_KEYS
from qwisp.facts.replay import FactsReplay, replay_facts
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.catalog import load_machine, load_model

_SHOWN = (
    "layout order facts rounds requests finished refused failed cancelled moves pauses decisions"
    " equal"
)
COLUMNS = tuple(map(output.Column, _SHOWN.split()))
_POLICIES = {"order", "cut"}
_ALLOWED = {"facts", "model", "machine", "output_format", *_POLICIES}


def show_facts(path: str, output_format: str) -> None:
    """Print what a fresh scheduler decides on the facts of a file, and whether that is the same.

    Layout, order and budget come from the file's header. `--model` gives the bytes where these
    decide, `--model` and `--machine` together the estimated seconds of the same rounds. Raises
    `CheckFailed` when the decisions differ from the recorded ones.
    """
    asked = _options()
    header, records = read_facts(path)
    if not records:
        raise BadInput(
            f"{path} holds a header and 0 facts, so nothing can be checked",
            "write a line for every ask, stop and cancel, as docs/your_engine.md shows",
        )
    header = _with_policies(header, asked)
    model = load_model(asked["model"]) if "model" in asked else None
    size = cost = None
    if model is not None:
        size = SessionBytes(model, chunk_tokens=header.chunk_tokens)
    if model is not None and "machine" in asked:
        cost = load_cost(model.name, load_machine(asked["machine"]).name)
    replay = replay_facts((header, records), size=size, cost=cost)
    document = facts_document(replay)
    output.emit([document], COLUMNS, output_format, document=document)
    for line in remarks(replay, document):
        output.note(line, output_format)
    if replay.equal is False:
        replay.require_equal()


def facts_document(replay: FactsReplay) -> dict[str, Any]:
    """Return the document of `qwisp replay --facts --json`.

    `recorded_s` is the time of the last fact, `estimated_s` what a cost model says the same rounds
    take (null without one); `equal` is null when the header holds no digest.
    """
    header, counts = replay.header, replay.scheduler.counts
    kinds = [entry.kind for entry in replay.log]
    return {
        "schema": "qwisp-facts-replay-1",
        "layout": header.layout,
        "order": header.order,
        "W": header.width,
        "C": header.chunk_tokens,
        "budget": header.budget_tokens,
        "facts": len(replay.records),
        "rounds": replay.scheduler.index,
        "requests": counts["submitted"],
        **{name: counts[name] for name in ("finished", "refused", "failed", "cancelled")},
        "moves": kinds.count("move") + kinds.count("resume"),
        "pauses": kinds.count("pause"),
        "decisions": len(replay.log),
        "log_sha256": replay.log_sha256,
        "recorded_sha256": replay.recorded_sha256,
        "equal": replay.equal,
        "recorded_s": max((record.time_ns for record in replay.records), default=0) / 1e9,
        "estimated_s": None if replay.clock is None else replay.clock.now_ps / 1e12,
    }


def remarks(replay: FactsReplay, document: dict[str, Any]) -> list[str]:
    """Return the finding, and what to do where it is open."""
    lines = []
    if replay.equal:
        lines.append(
            f"equal: the {document['decisions']:,} decisions of the replay are the recorded ones"
        )
    elif replay.equal is None:
        lines += [
            f"not compared: the {document['facts']:,} facts can be replayed, but the header holds "
            "no digest of the run's own decisions",
            f'next: write "log_sha256" into the header; this replay has {replay.log_sha256}',
        ]
    unread = [key for key, _ in replay.header.extra if key not in READ_KEYS]
    if unread:
        lines.append(
            f"not used: header keys {', '.join(unread)}; read are {', '.join(sorted(READ_KEYS))}"
        )
    if document["estimated_s"] is not None:
        lines.append(
            f"time: {document['estimated_s']:,.1f} s by the cost model for these rounds, "
            f"{document['recorded_s']:,.1f} s recorded until the last fact"
        )
    return lines


def _with_policies(header: FactsHeader, asked: dict[str, Any]) -> FactsHeader:
    """Return the header with the user's own order and cut where the run had its own.

    A path in a file from elsewhere is not run: its reader names the policy file, or nobody does.
    Raises `BadInput` for such a path without its option, and for an option without such a path.
    """
    extra = dict(header.extra)
    for name, ran in (("order", header.order), ("cut", extra.get("cut"))):
        is_own = isinstance(ran, str) and ran.endswith(".py")
        if is_own and name not in asked:
            raise BadInput(
                f"the facts were decided by the {name} of {ran!r}, a file that is not run unasked",
                f"read it, then name it yourself: --{name} FILE.py",
            )
        if name in asked and not is_own:
            raise BadInput(
                f"--{name} beside --facts: the header says {ran or 'nothing'} decided them",
                "leave it out; for another policy, give the requests as a trace with --trace",
            )
    if "cut" in asked:
        extra["cut"] = asked["cut"]
    order = asked.get("order", header.order)
    return header._replace(order=order, extra=tuple(sorted(extra.items())))


def _options() -> dict[str, Any]:
    """Return the options that were given. Raises `BadInput` for one the header decides."""
    context = click.get_current_context()
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    other = sorted(given.keys() - _ALLOWED)
    if other:
        names = ", ".join("--" + _SPELLED.get(name, name).replace("_", "-") for name in other)
        raise BadInput(
            f"{names} beside --facts: the header of the facts says how they were scheduled",
            "leave it out; for another policy, give the requests as a trace with --trace",
        )
    if "machine" in given and "model" not in given:
        raise BadInput("--machine without --model", "name both for estimated times, or neither")
    return given


_SPELLED = {"find_rate": "sustain"}
