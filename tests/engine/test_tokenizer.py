"""Text to tokens and back: streamed text is the whole text, and templates stay in their box."""

from __future__ import annotations

import datetime
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from qwisp.engine.text.chat_template import ChatTemplate
from qwisp.engine.text.tokenizer import Tokenizer, load_tokenizer
from qwisp.errors import BadConfig, BadInput

pytestmark = pytest.mark.mlx

USER = [{"role": "user", "content": "hi"}]
CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if tools %}{{ tools | tojson }}{% endif %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer in which every byte is a token, so characters are cut apart."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>", "<|begin|>"])
    return inner


A, B = 256, 257


def fallback_tokenizer() -> tokenizers.Tokenizer:
    """Return one of whole pieces that spells the rest in bytes, as sentencepiece does."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": A, "\u2581b": B, "<unk>": 258}
    model = models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return inner


def streamed(tokens: list[int]) -> str:
    stream = Tokenizer(fallback_tokenizer()).stream()
    return "".join([*map(stream.push, tokens), stream.flush()])


def saved(folder, **settings_):
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_))
    return folder


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_streamed_text_is_the_whole_text(text):
    tokenizer = Tokenizer(byte_tokenizer())
    stream = tokenizer.stream()
    tokens = tokenizer.encode(text)
    pieces = [stream.push(token) for token in tokens]
    assert "".join([*pieces, stream.flush()]) == tokenizer.decode(tokens)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([0xE2, 0x82, 0xAC, B], "\u20ac b"),
        ([0x41, 0xF0, A], "A\ufffda"),  # the library's own stream raises here
        ([A, 0x41, 0xFF, B, B], "aA\ufffd b b"),
        ([0xEF, 0x9F, 0x82, 0x41, 0x98, A], "\uf7c2A\ufffda"),
        ([0x41, 0xFF], "A\ufffd"),
        ([0x41, 0xF0, A, 0x41, 0xF0, B, A], "A\ufffdaA\ufffd ba"),
    ],
)
def test_bytes_that_are_no_character_become_marks(tokens, text):
    assert streamed(tokens) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF, 0x41, A, B]), max_size=12))
def test_any_bytes_stream_and_no_piece_is_lost(tokens):
    text = streamed(tokens)
    assert [c for c in text if c in "ab"] == ["ab"[t - A] for t in tokens if t >= A]


def test_an_unfinished_character_waits():
    tokenizer = Tokenizer(byte_tokenizer())
    stream = tokenizer.stream()
    first, *rest = tokenizer.encode("€")
    assert stream.push(first) == ""
    assert "".join(map(stream.push, rest)) == "€"
    assert stream.push(first) == ""
    assert stream.flush() == "�"


def test_a_conversation_goes_through_the_checkpoints_template(tmp_path):
    tokenizer = load_tokenizer(saved(tmp_path, chat_template=CHATML, eos_token="<|end|>"), {})
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer.chat(USER)) == text
    tools = [{"type": "function", "function": {"name": "a<b"}}]
    assert '"name": "a<b"' in tokenizer.decode(tokenizer.chat(USER, tools=tools))


def test_templates_are_found_where_checkpoints_keep_them(tmp_path):
    saved(tmp_path)
    assert load_tokenizer(tmp_path, {}).template is None
    with pytest.raises(BadInput, match="no chat template"):
        load_tokenizer(tmp_path, {}).chat(USER)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    saved(tmp_path, chat_template=named)
    assert load_tokenizer(tmp_path, {}).template.render(USER) == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(tmp_path, {}).template.render(USER) == "file"


def test_every_end_that_the_files_name_stops_a_reply(tmp_path):
    saved(tmp_path, eos_token={"content": "<|end|>"})
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    config = {"eos_token_id": 5, "text_config": {"eos_token_id": 6}}
    assert load_tokenizer(tmp_path, config).stop_tokens == {3, 4, 5, 6, 256}
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(BadConfig, match="generation_config"):
        load_tokenizer(tmp_path, config)


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(BadInput, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(BadInput, match="sentencepiece"):
        load_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="is no tokenizer"):
        load_tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{% include 'secrets' %}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{% if %}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_a_template_that_misbehaves_is_an_error_of_two_lines(text):
    with pytest.raises(BadInput, match="template"):
        ChatTemplate(text).render(USER)


def test_a_template_reaches_nothing_behind_a_function():
    assert ChatTemplate("{{ raise_exception.__globals__ }}").render(USER) == ""


def test_a_huge_template_is_refused():
    with pytest.raises(BadInput, match="2,000,000"):
        ChatTemplate("x" * 2_000_000)


def test_a_template_is_told_the_day_and_skips_training_marks():
    day = datetime.datetime(2026, 5, 4)
    text = "{{ strftime_now('%Y-%m-%d') }}{% generation %} said{% endgeneration %}{{ bos_token }}"
    made = ChatTemplate(text, {"bos_token": "<s>"})
    assert made.render(USER, today=day) == "2026-05-04 said<s>"
