"""Texts for the recall models: haystacks of distinct tokens, a question, and the one right reply.

`kv` and `ring` models repeat what once followed the last token: asked with a token from inside the
haystack, the right reply is the haystack's own continuation. The `state` model remembers facts
(key -> value) and goes on from value to value: the right reply is a chain of facts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["state", "kv", "ring"]
KINDS: tuple[Kind, ...] = ("state", "kv", "ring")
NUM_FACTS = 64
NUM_WORDS = 6016
"""Tokens that carry nothing but themselves; with keys and values the vocabulary has 6,144."""
VOCAB = 2 * NUM_FACTS + NUM_WORDS
RING_WINDOW = 4096


class Recall(NamedTuple):
    """A prompt that ends with the question, and the tokens that answer it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


def question(
    kind: Kind,
    tokens: int,
    rng: np.random.Generator,
    *,
    depth: float = 0.5,
    reply_tokens: int = 32,
    lead_tokens: int = 0,
) -> Recall:
    """Return a haystack of `tokens` distinct tokens asked at `depth` (0: its start, 1: its end).

    `lead_tokens` further distinct ones stand before it. For `state`, the facts are spread over
    depths 0.1 to 0.9 and the asked one stands at `depth`.

    >>> q = question("kv", 100, np.random.default_rng(0), depth=0.5, reply_tokens=4)
    >>> at = q.prompt.index(q.prompt[-1])
    >>> at, q.reply == q.prompt[at + 1 : at + 5], len(set(q.prompt[:-1]))
    (49, True, 99)
    """
    words = 2 * NUM_FACTS + rng.permutation(NUM_WORDS)[: tokens + lead_tokens - 1]
    text = [int(word) for word in words]
    if kind == "state":
        return _chain(text, rng, lead_tokens, tokens, depth, reply_tokens)
    at = lead_tokens + min(int(depth * (tokens - 1)), tokens - 2 - reply_tokens)
    return Recall((*text, text[at]), tuple(text[at + 1 : at + 1 + reply_tokens]))


def _chain(
    text: list[int],
    rng: np.random.Generator,
    lead_tokens: int,
    tokens: int,
    depth: float,
    reply_tokens: int,
) -> Recall:
    """Put every fact into the text as a pair (key, value); values lead from fact to fact."""
    order = rng.permutation(NUM_FACTS)
    after = {int(a): int(b) for a, b in zip(order, np.roll(order, -1), strict=True)}
    first, last = int(0.1 * tokens), int(0.9 * tokens)
    places = lead_tokens + np.linspace(first, last - 2, NUM_FACTS).astype(int)
    asked = int(np.argmin(np.abs(places - lead_tokens - depth * tokens)))
    facts = [int(fact) for fact in rng.permutation(NUM_FACTS)]
    for fact, place in zip(facts, places, strict=True):
        text[place], text[place + 1] = fact, NUM_FACTS + after[fact]
    reply, fact = [], facts[asked]
    for _ in range(reply_tokens):
        fact = after[fact]
        reply.append(NUM_FACTS + fact)
    return Recall((*text, facts[asked]), tuple(reply))
