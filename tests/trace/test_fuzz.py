"""Whatever stands in a file, a reader answers with a trace or a `QwispError`. Nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from qwisp.errors import QwispError
from qwisp.facts.file import parse_facts
from qwisp.trace.read import parse_trace
from qwisp.trace.table import TableFormat

NUM_LINES = 30_000
LINES_A_FILE = 1_000

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    [b"2023-11-16 18:15:46.6805900,374,44\r\n", b"2023-11-16 18:15:50.9951690,396,109\r\n"],
)
AZURE_2024 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
    [b"2024-05-10 00:00:00.009930+00:00,2162,5\n", b"2024-05-10 00:00:00+00:00,2399,6\n"],
)
BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    [b"5,ChatGPT,472,18,490,Conversation log\n", b"45.5,GPT-4,1087,0,1087,API log\n"],
)
MOONCAKE = (
    b"",
    [b'{"timestamp": 27482, "input_length": 690, "output_length": 52, "hash_ids": [46, 47]}\n'],
)
OWN = (
    b"",
    [b'{"id": 3, "arrival_s": 0.5, "prompt_tokens": 9, "output_tokens": 6, "max_new": null}\n'],
)
LOG = (
    b"",
    [
        b'{"created": 1700000000, "usage": {"prompt_tokens": 1, "completion_tokens": 3}}\n',
        b'{"ts": "2023-11-14T22:13:21.25Z", "response": {"status_code": 500}}\n',
    ],
)
FACTS = (
    b'{"schema": "qwisp-facts-1", "layout": "4096", "W": 1, "C": 1, "budget": 0, "order": "f"}\n',
    [
        b'{"round": 0, "time_s": 0, "kind": "ask", "id": 1, "prompt_tokens": 5}\n',
        b'{"round": 1, "time_s": 0.5, "kind": "fail", "position": 1, "reason": "x"}\n',
        b'{"round": 1, "time_s": 0.5, "kind": "stop", "id": 1}\n',
        b'{"round": 1, "time_s": 0.5, "kind": "extra", "id": 1, "tokens": 2}\n',
    ],
)
ALL = {
    "azure": AZURE,
    "azure 2024": AZURE_2024,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
    "own": OWN,
    "log": LOG,
}
NASTY = [
    b"",
    b"-1",
    b"0",
    b"NaN",
    b"1e999",
    b"1E-400",
    b"true",
    b"null",
    b"{}",
    b"[[]]",
    b'"',
    b"\\",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"\0",
    b"\r",
    b"\n",
    b",",
    b"9" * 30,
    b"9" * 5000,
    b"2262-04-12 00:00:00",
    b"9999-99-99 99:99:99.9999999",
    "٣".encode(),
    b"+5",
    b"1_000",
    b"0x10",
    b" ",
    b"-0",
    b"00005",
]


def mutated(line: bytes, rng: random.Random) -> bytes:
    """Return `line` with up to three spans replaced by nasty ones, noise or nothing."""
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(line) + 1)
        end = min(len(line), start + rng.choice((0, 1, 1, 2, 5, 20)))
        middle = rng.choice(NASTY) if rng.random() < 0.6 else rng.randbytes(rng.randrange(3))
        line = line[:start] + middle + line[end:]
    return line


def answer(parse: Callable[[], object]) -> object:
    """Return what `parse` returns, or the text of its `QwispError`; anything else escapes."""
    try:
        return parse()
    except QwispError as error:
        caught = error
    assert len(str(caught).split("\n")) == 2, str(caught)
    return str(caught)


@pytest.mark.parametrize("name", ALL)
def test_only_qwisp_errors_come_out_of_a_trace_reader(name: str) -> None:
    head, good = ALL[name]
    rng = random.Random(name)
    kinds: set[type] = set()
    for _ in range(NUM_LINES // LINES_A_FILE):
        lines = [mutated(rng.choice(good), rng) for _ in range(LINES_A_FILE)]
        kinds.add(
            type(answer(lambda lines=lines: parse_trace(head + b"".join(lines), lenient=True)))
        )
        for line in lines[:20]:
            kinds.add(type(answer(lambda line=line: parse_trace(head + good[0] + line))))
    assert len(kinds) == 2, "the fuzz must produce traces as well as errors"


def test_only_qwisp_errors_come_out_of_the_facts_reader() -> None:
    head, good = FACTS
    rng = random.Random("facts")
    kinds: set[type] = set()
    for _ in range(NUM_LINES // 2):
        line, first = mutated(rng.choice(good), rng), mutated(head, rng)
        kinds.add(type(answer(lambda line=line: parse_facts(head + good[0] + line))))
        kinds.add(type(answer(lambda first=first: parse_facts(first + good[0]))))
    assert len(kinds) == 2, "the fuzz must produce facts as well as errors"


@pytest.mark.parametrize(
    "table", [AZURE, AZURE_2024, BURSTGPT], ids=["azure", "azure 2024", "burstgpt"]
)
def test_at_once_and_line_by_line_agree_on_damaged_files(
    monkeypatch: pytest.MonkeyPatch, table: tuple[bytes, list[bytes]]
) -> None:
    head, good = table
    rng = random.Random(11)
    files = []
    for _ in range(1_500):
        lines = [rng.choice(good) for _ in range(3)]
        lines[rng.randrange(3)] = mutated(rng.choice(good), rng)
        files.append(head + b"".join(sorted(lines)))
    fast = [answer(lambda data=data: parse_trace(data)) for data in files]
    monkeypatch.setattr(TableFormat, "columns_at_once", lambda self, data: None)
    slow = [answer(lambda data=data: parse_trace(data)) for data in files]
    for data, one, other in zip(files, fast, slow, strict=True):
        assert one == other, data
    assert any(isinstance(one, str) for one in fast)
    assert not all(isinstance(one, str) for one in fast)
