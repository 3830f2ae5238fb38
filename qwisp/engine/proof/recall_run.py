"""Recall in a crowd: sessions so tight that every stream must move, and some must wait."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from qwisp.engine.build import Engine, open_engine
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.text.recall_text import Kind, question
from qwisp.engine.weights.loading import load_decoder
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.settings import Settings

CHUNK_TOKENS = 64
GROW_TOKENS = 8


class Recalled(NamedTuple):
    """One request: where its answer stood (0 to 1), how much of the reply was right, its moves."""

    request: int
    depth: float
    right_tokens: int
    reply_tokens: int
    moves: int
    pauses: int


def recall_in_a_crowd(
    kind: Kind, *, lanes: int = 8, tokens: int = 400, reply_tokens: int = 32, seed: int = 0
) -> tuple[list[Recalled], Engine]:
    """Return what each of `lanes` questions got, and the engine that ran them.

    Each haystack has `tokens` distinct tokens. Sessions hold a prompt and a few tokens more; one in
    four is large enough for a whole reply, so streams move there in turn and wait for each other.

    >>> rows, _ = recall_in_a_crowd("kv", lanes=2, tokens=200, reply_tokens=12)
    >>> [(row.right_tokens, row.moves) for row in rows]
    [(12, 1), (12, 1)]
    """
    rng = np.random.default_rng(seed)
    depths = np.linspace(0.1, 0.9, lanes)
    asked = [question(kind, tokens, rng, depth=d, reply_tokens=reply_tokens) for d in depths]
    small, large = len(asked[0].prompt) + GROW_TOKENS, len(asked[0].prompt) + reply_tokens + 8
    contexts = (*[small] * lanes, *[large] * max(1, lanes // 4))
    layout = Layout.sessions(*contexts)
    script = ScriptedClients.of(
        {i: TokenRequest(prompt=q.prompt) for i, q in enumerate(asked)},
        max_new=dict.fromkeys(range(lanes), reply_tokens),
    )
    settings = Settings(grow_tokens=GROW_TOKENS - 1, chunk_tokens=CHUNK_TOKENS)
    engine = open_engine(load_decoder(f"recall_{kind}"), layout, script, settings)
    drive(engine.scheduler, engine.executor)
    kinds = Counter((entry.kind, entry.id) for entry in engine.scheduler.log)
    rows = []
    for i, q in enumerate(asked):
        pairs = zip(script.replies[i].tokens, q.reply, strict=True)
        right = sum(a == b for a, b in pairs)
        moves = kinds["move", i] + kinds["resume", i]
        depth = round(float(depths[i]), 2)
        rows.append(Recalled(i, depth, right, len(q.reply), moves, kinds["pause", i]))
    return rows, engine
