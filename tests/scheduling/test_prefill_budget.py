"""The token budget of a round: running streams first, then whole chunks, first in, first out."""

from __future__ import annotations

import pytest

from qwisp.scheduling.chunking import Chunking, granted_chunks
from qwisp.scheduling.contract import Grant, Outcome, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Wrapper
from qwisp.testing import ScriptedRequest, play, sessions


def grants(requests: list[ScriptedRequest], **settings: object) -> list[tuple[int, ...]]:
    """`(round, id, start, tokens, chunks)` of every grant, one a round even where it repeats."""
    kept: list[tuple[Round, Outcome]] = []

    class Wrap(Wrapper):
        def run(self, round: Round) -> Outcome:
            outcome = self.inner.run(round)
            kept.append((round, outcome))
            return outcome

    play(sessions(400, 400, 400), requests, Settings(**settings), wrap=Wrap)
    return [
        (round.index + i, op.id, op.start + i * op.num_tokens, op.num_tokens, op.num_chunks)
        for round, outcome in kept
        for i in range(outcome.rounds)
        for op in round.ops
        if isinstance(op, Grant)
    ]


def test_a_budget_grants_whole_chunks_and_at_least_one() -> None:
    assert [granted_chunks(64, running, 16) for running in (0, 1, 16, 17, 48, 63, 64, 99)] == [
        4, 4, 3, 3, 1, 1, 1, 1,
    ]  # fmt: skip


def test_a_prompt_is_prefilled_but_for_its_last_token() -> None:
    assert grants([ScriptedRequest(1, 100, 3)], chunk_tokens=16, budget_tokens=32) == [
        (0, 1, 0, 32, 2),
        (1, 1, 32, 32, 2),
        (2, 1, 64, 32, 2),
        (3, 1, 96, 3, 1),
    ]


def test_ceil_chunks_cover_the_whole_prompt() -> None:
    settings = {"chunk_tokens": 16, "budget_tokens": 32, "chunk_rule": "ceil"}
    assert grants([ScriptedRequest(1, 96, 3)], **settings)[-1] == (2, 1, 64, 32, 2)
    assert grants([ScriptedRequest(1, 97, 3)], **settings)[-1] == (3, 1, 96, 1, 1)


def test_a_prompt_of_one_token_has_no_grant_and_decodes_at_once() -> None:
    assert grants([ScriptedRequest(1, 1, 3)]) == []
    played = play(sessions(40), [ScriptedRequest(1, 1, 3)])
    assert played.story() == [
        (0, "arrive", 1),
        (0, "admit", 1),
        (0, "decode", 1),
        (2, "finished", 1),
    ]


def test_budget_0_prefills_each_prompt_in_one_go_one_a_round() -> None:
    asks = [ScriptedRequest(i, 100 + i, 9) for i in range(3)]
    assert grants(asks, chunk_tokens=16, budget_tokens=0) == [
        (0, 0, 0, 99, 7),
        (1, 1, 0, 100, 7),
        (2, 2, 0, 101, 7),
    ]


def test_what_is_left_of_a_budget_goes_to_the_next_prompt() -> None:
    asks = [ScriptedRequest(1, 40, 9), ScriptedRequest(2, 60, 9)]
    assert grants(asks, chunk_tokens=16, budget_tokens=64) == [
        (0, 1, 0, 39, 3),
        (0, 2, 0, 16, 1),
        (1, 2, 16, 43, 3),
    ]


@pytest.mark.parametrize("budget", [0, 16, 32, 33, 48, 64, 100, 1024])
@pytest.mark.parametrize("prompt", [2, 16, 17, 18, 100, 161, 300])
def test_k_rounds_prefill_a_prompt_beside_a_running_stream(budget: int, prompt: int) -> None:
    asks = [ScriptedRequest(1, 1, 300), ScriptedRequest(2, prompt, 5, arrives=3)]
    found = [g for g in grants(asks, chunk_tokens=16, budget_tokens=budget) if g[1] == 2]
    chunks = Chunking(16, "aligned").count(0, prompt - 1)
    k = 1 if budget == 0 else -(-chunks // max(1, -(-(budget - 1) // 16)))
    assert [g[0] for g in found] == list(range(3, 3 + k))
    assert sum(g[3] for g in found) == prompt - 1


def test_the_first_token_comes_in_the_round_that_ends_the_prefill() -> None:
    played = play(
        sessions(400), [ScriptedRequest(1, 100, 1)], Settings(chunk_tokens=16, budget_tokens=32)
    )
    assert played.story("decode", "finished") == [(3, "decode", 1), (3, "finished", 1)]
