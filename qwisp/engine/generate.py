"""Prompts in, tokens out as they come: the scheduler over one arena that is cut for the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from qwisp.engine.build import Engine, open_engine
from qwisp.engine.clients import Reply, ScriptedClients, TokenRequest
from qwisp.engine.text.tokenizer import Tokenizer, load_tokenizer
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.engine.weights.loading import SMOLLM2
from qwisp.errors import BadInput
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.scheduling.contract import Executor, Grant, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper
from qwisp.spec.catalog import load_machine

OnToken = Callable[[int, int], None]
OnPrefill = Callable[[int, int, int], None]


def _nothing(*_: int) -> None:
    pass


class Listening(ScriptedClients):
    """Scripted clients that are told every token; a round with prefill is never repeated, so that
    its progress can be shown."""

    on_token: OnToken = staticmethod(_nothing)

    def token(self, request_id: int, token: int, logits: np.ndarray | None) -> None:
        """Keep a token and tell it."""
        super().token(request_id, token, logits)
        self.on_token(request_id, token)

    def rounds_free(self, round: Round) -> int:
        """Return 1 while somebody prefills."""
        if any(isinstance(op, Grant) for op in round.ops):
            return 1
        return super().rounds_free(round)


class _Prefilling(Wrapper):
    """Tells how far each prompt has come."""

    def __init__(self, inner: Executor, totals: Mapping[int, int], on_prefill: OnPrefill) -> None:
        super().__init__(inner)
        self.totals, self.on_prefill = totals, on_prefill

    def run(self, round: Round) -> Outcome:
        """Carry out the round, then tell."""
        outcome = self.inner.run(round)
        for op in round.ops:
            if isinstance(op, Grant):
                self.on_prefill(op.id, op.start + op.num_tokens, self.totals[op.id] - 1)
        return outcome


def generate(
    model: LoadedModel,
    requests: Sequence[TokenRequest],
    *,
    max_new: int,
    lanes: int = 1,
    budget_tokens: int = 1024,
    chunk_tokens: int = 256,
    order: str = "fcfs",
    on_token: OnToken = _nothing,
    on_prefill: OnPrefill = _nothing,
    wrap: Callable[[Executor], Executor] = lambda executor: executor,
) -> tuple[list[Reply], Engine]:
    """Return the replies in order, and the engine that made them.

    At most `lanes` run at once, admitted by `order` (a name, or the path of one's own).
    `on_token(i, token)` hears every token as it comes, `on_prefill(i, done, total)` how far a
    prompt is; `wrap` puts a wrapper around the executor. Raises `BadInput` for what does not fit.
    """
    _check(model, requests, max_new, lanes)
    longest = max(len(request.prompt) for request in requests)
    context = longest + max_new + 1
    count = min(lanes, len(requests))
    layout = Layout.windows(count, context)
    named = dict(enumerate(requests))
    script = Listening.of(named, max_new=dict.fromkeys(named, max_new))
    script.on_token = on_token
    settings = Settings(
        budget_tokens=budget_tokens,
        chunk_tokens=chunk_tokens,
        order=order,
        grow_tokens=max_new,
        gen_cap_tokens=max_new,
    )
    _check_memory(model, context, count, chunk_tokens)
    engine = open_engine(model, layout, script, settings)
    totals = {i: len(request.prompt) for i, request in named.items()}
    drive(engine.scheduler, _Prefilling(wrap(engine.executor), totals, on_prefill))
    return [script.replies[i] for i in named], engine


def alone_and_together(
    model: LoadedModel, lengths: Sequence[int], *, max_new: int
) -> list[tuple[Reply, Reply]]:
    """Return, for a made-up prompt of each length, its reply alone and its reply among the others.

    >>> from qwisp.engine.weights.loading import load_decoder
    >>> pairs = alone_and_together(load_decoder("tiny:llama"), [3, 9], max_new=4)
    >>> [alone.tokens == together.tokens for alone, together in pairs]
    [True, True]
    """
    vocab = model.decoder.spec.vocab
    texts = [tuple((37 * i + 11 * j) % vocab for j in range(n)) for i, n in enumerate(lengths)]
    requests = [TokenRequest(prompt=text) for text in texts]
    together, _ = generate(model, requests, max_new=max_new, lanes=len(requests))
    alone = [generate(model, [request], max_new=max_new)[0][0] for request in requests]
    return list(zip(alone, together, strict=True))


def default_chunk() -> int:
    """Return rows of a prefill window: 256, or 64 on a CPU, where an empty row costs a full one."""
    return 64 if mx.default_device() == mx.Device(mx.cpu) else 256


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    """Return a model's tokenizer. Raises `BadInput` for one that has none."""
    if model.name == SMOLLM2:
        from qwisp.engine.weights.smollm2 import smollm2_tokenizer

        return smollm2_tokenizer()
    if model.folder is None:
        raise BadInput(f"{model.name} has no tokenizer", "give token ids with --tokens 1,2,3")
    return load_tokenizer(model.folder, model.config)


def _check_memory(model: LoadedModel, context: int, count: int, chunk_tokens: int) -> None:
    """Refuse sessions that this machine cannot hold, before the first of them is allocated.

    The one context rule decides, with the weights as they are loaded.
    """
    ContextAdmission(
        model.spec,
        load_machine("this"),
        weights=model.weight_bytes,
        lanes=count,
        dialect=Qwisp(chunk_tokens=chunk_tokens),
    ).admit(context)


def _check(model: LoadedModel, requests: Sequence[TokenRequest], max_new: int, lanes: int) -> None:
    if not requests:
        raise BadInput("no prompt", "give at least one with --prompt")
    if max_new < 1 or lanes < 1:
        raise BadInput(f"max-new is {max_new}, lanes {lanes}", "give 1 or more of each")
    vocab, limit = model.decoder.spec.vocab, model.spec.context_max_tokens
    for i, request in enumerate(requests):
        if not request.prompt:
            raise BadInput(f"prompt {i} has no tokens", "give a prompt with some text in it")
        worst = next((token for token in request.prompt if not 0 <= token < vocab), None)
        if worst is not None:
            raise BadInput(f"prompt {i} holds token {worst}", f"use tokens from 0 to {vocab - 1:,}")
        if limit is not None and len(request.prompt) + max_new > limit:
            raise BadInput(
                f"prompt {i} has {len(request.prompt):,} tokens and {max_new:,} are to follow; "
                f"{model.name} reads {limit:,}",
                f"shorten it, or set --max-new to {max(1, limit - len(request.prompt)):,} or less",
            )
