"""`qwisp generate`: text from the lane engine, as it comes."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qwisp.cli import output
from qwisp.errors import BadInput

if TYPE_CHECKING:
    from qwisp.scheduling.contract import Executor

LONG_PROMPT_TOKENS = 512


@click.command()
@click.option(
    "--model", required=True, help="A folder, org/name in the local cache, smollm2, recall_kv."
)
@click.option("--prompt", "prompts", multiple=True, help="What to say; - reads it. Repeatable.")
@click.option("--tokens", "ids", multiple=True, help="Token ids like 5,9,2 instead of a prompt.")
@click.option("--system", help="A system message before each prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is: no chat template.")
@click.option("--max-new", default=256, show_default=True, help="Most tokens of a reply.")
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--seed", default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--lanes", default=8, show_default=True, help="Most prompts at once.")
@click.option("--order", default="fcfs", show_default=True, help="fcfs, first_fit, sjf or a .py.")
@click.option("--chunk", type=int, help="Rows of a prefill window. [default: 256; 64 on a CPU]")
@click.option("--dtype", help="float32, bfloat16 or float16; the model's own if not given.")
@click.option(
    "--facts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what happened to this file, for qwisp replay --facts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(
    model: str,
    prompts: tuple[str, ...],
    ids: tuple[str, ...],
    system: str | None,
    raw: bool,
    max_new: int,
    temperature: float,
    seed: int,
    lanes: int,
    order: str,
    chunk: int | None,
    dtype: str | None,
    facts: Path | None,
    as_json: bool,
) -> None:
    """Generate text with the lane engine.

    One prompt streams as it is generated; several run side by side, each with the bits it would
    have alone, and print in order.
    """
    if facts is not None and not os.access(facts.parent, os.W_OK):
        raise BadInput(f"cannot write {facts}: no such folder to write to", "give another path")
    from qwisp.engine.clients import TokenRequest
    from qwisp.engine.generate import default_chunk, generate, tokenizer_of
    from qwisp.engine.sampling import Sampling
    from qwisp.engine.weights.loading import load_decoder
    from qwisp.facts.record import Recorded, write_run

    if bool(prompts) == bool(ids):
        raise BadInput("neither --prompt nor --tokens, or both", "give one of the two")
    rule = Sampling(temperature=temperature, seed=seed)
    loaded = load_decoder(model, dtype=dtype)
    if loaded.skipped:
        others = ", ".join(f"{n} of {part}" for part, n in sorted(loaded.skipped.items()))
        click.echo(f"skipped weights: {others}", err=True)
    tokenizer = None if ids else tokenizer_of(loaded)
    asked = [_ids(text) for text in ids]
    for text in prompts:
        asked.append(_tokens(tokenizer, _read(text), system, raw=raw))
    stop = frozenset() if tokenizer is None else tokenizer.stop_tokens
    requests = [TokenRequest(prompt=p, sampling=rule, stop_tokens=stop) for p in asked]
    view = _View(tokenizer, stop, streams=len(requests) == 1 and not as_json)
    begin = time.perf_counter()
    recorders: list[Recorded] = []

    def record(executor: Executor) -> Executor:
        recorders.append(Recorded(executor, lambda: time.perf_counter() - begin))
        return recorders[-1]

    with ExitStack() as stack:
        view.show_prefill(stack, asked)
        replies, engine = generate(
            loaded,
            requests,
            max_new=max_new,
            lanes=lanes,
            chunk_tokens=default_chunk() if chunk is None else chunk,
            order=order,
            on_token=view.token,
            on_prefill=view.prefill,
            wrap=record,
        )
    seconds = time.perf_counter() - begin
    if facts is not None:
        write_run(facts, recorders[0], engine.scheduler)
        click.echo(f"wrote {facts}; next: qwisp replay --facts {facts}", err=True)
    rows = [view.row(i, asked[i], reply) for i, reply in enumerate(replies)]
    if as_json:
        admitted = [entry.id for entry in engine.scheduler.log if entry.kind == "admit"]
        document = {"schema": 1, "model": loaded.name, "identity": engine.identity.label}
        document |= {"order": order, "admitted": admitted}
        click.echo(output.to_json(document | {"replies": rows}))
    else:
        view.finish(rows)
    total = sum(row["output_tokens"] for row in rows)
    click.echo(
        f"{sum(map(len, asked)):,} prompt and {total:,} new tokens in {seconds:.1f} s, "
        f"{engine.identity.label}",
        err=True,
    )


class _View:
    """What a person sees while tokens come: text on stdout, prefill progress on stderr."""

    def __init__(self, tokenizer: Any, stop: frozenset[int], *, streams: bool) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._streams = streams
        self._text = None if tokenizer is None else tokenizer.stream()
        self._done: dict[int, int] = {}
        self._advance = lambda steps: None
        self._bar: ExitStack | None = None

    def show_prefill(self, stack: ExitStack, asked: Sequence[tuple[int, ...]]) -> None:
        total = sum(len(prompt) - 1 for prompt in asked)
        if total >= LONG_PROMPT_TOKENS:
            self._bar = stack.enter_context(ExitStack())
            self._advance = self._bar.enter_context(output.progress("reading the prompt", total))

    def prefill(self, i: int, done: int, total: int) -> None:
        self._advance(done - self._done.get(i, 0))
        self._done[i] = done

    def token(self, i: int, token: int) -> None:
        if self._bar is not None and self._streams:
            self._bar.close()  # the bar goes before text comes
            self._bar = None
        if not self._streams or token in self._stop:
            return
        piece = f"{token} " if self._text is None else self._text.push(token)
        sys.stdout.write(_visible(piece))
        sys.stdout.flush()

    def row(self, i: int, prompt: tuple[int, ...], reply: Any) -> dict[str, Any]:
        kept = [token for token in reply.tokens if token not in self._stop]
        text = None if self._tokenizer is None else self._tokenizer.decode(kept)
        return {
            "index": i,
            "prompt_tokens": len(prompt),
            "output_tokens": len(reply.tokens),
            "tokens": kept,
            "text": text,
            "outcome": reply.end.outcome,
            "reason": reply.end.reason,
        }

    def finish(self, rows: list[dict[str, Any]]) -> None:
        if self._streams:
            rest = "" if self._text is None else self._text.flush()
            sys.stdout.write(_visible(rest) + "\n")
        for row in rows if not self._streams else ():
            shown = row["text"]
            if shown is None:
                shown = " ".join(map(str, row["tokens"]))
            click.echo(f"[{row['index']}] {_visible(shown)}")
        failed = next((row for row in rows if row["outcome"] != "finished"), None)
        if failed is not None:
            raise BadInput(
                f"reply {failed['index']} {failed['outcome']}: {failed['reason']}",
                "shorten the prompt or lower --max-new",
            )


def _tokens(tokenizer: Any, text: str, system: str | None, *, raw: bool) -> tuple[int, ...]:
    if raw:
        if system is not None:
            raise BadInput("--system with --raw", "a raw prompt has no system message")
        return tokenizer.encode(text)
    if tokenizer.template is None:
        return tokenizer.encode(text if system is None else f"{system}\n{text}")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    return tokenizer.chat(messages, today=datetime.datetime.now())


def _read(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--tokens {text[:40]!r}", "give token ids like 5,9,2") from None


def _visible(text: str) -> str:
    """Return text that cannot steer a terminal; line breaks and tabs stay."""
    return "".join(c if c in "\n\t" else output.printable(c) for c in text)
