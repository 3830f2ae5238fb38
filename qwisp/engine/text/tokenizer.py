"""Text to tokens and back, by the checkpoint's own `tokenizer.json` and chat template."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

from qwisp.engine.text.chat_template import ChatTemplate
from qwisp.errors import BadConfig, BadInput

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
Messages = Sequence[Mapping[str, Any]]


class Tokenizer:
    """A tokenizer with its chat template (perhaps None) and the tokens that end a reply."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        template: ChatTemplate | None = None,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self.inner = inner
        self.template = template
        self.stop_tokens = stop_tokens

    @property
    def vocab(self) -> int:
        """Tokens it knows, added ones too."""
        return self.inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, with_special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a text, `with_special` those that the checkpoint starts with too."""
        return tuple(self.inner.encode(text, add_special_tokens=with_special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return self.inner.decode(list(tokens), skip_special_tokens=True)

    def chat(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        today: datetime.datetime | None = None,
    ) -> tuple[int, ...]:
        """Return the tokens of a conversation. Raises `BadInput` without a chat template."""
        if self.template is None:
            raise BadInput("the model has no chat template", "give a plain prompt with --raw")
        text = self.template.render(messages, tools=tools, today=today)
        return self.encode(text, with_special=False)

    def stream(self) -> TextStream:
        """Return a decoder for tokens that come one by one."""
        return TextStream(self)


class TextStream:
    """Text as it becomes certain: bytes of an unfinished character wait for the next token.

    Bytes that no character begins with, or that others break off, become replacement marks.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._waiting: list[int] = []  # since the last text
        self._text = ""

    def push(self, token: int) -> str:
        """Return the text that this token makes certain, often its own, sometimes none."""
        self._tokens.append(token)
        self._waiting.append(token)
        try:
            text = self._stream.step(self._tokenizer.inner, token) or ""
        except Exception:  # a byte too many unmakes characters that were told: they stand
            text = self._begin_again()
        if text:
            self._waiting = []
        self._text += text
        return text

    def flush(self) -> str:
        """Return what is left at the end: an unfinished character becomes a replacement mark."""
        whole = self._tokenizer.decode(self._tokens)
        if whole.startswith(self._text):
            return whole[len(self._text) :]
        return self._tokenizer.decode(self._waiting)

    def _begin_again(self) -> str:
        """Return the text of the tokens that wait, apart from those that were told."""
        self._stream = DecodeStream(skip_special_tokens=True)
        try:
            return "".join(
                self._stream.step(self._tokenizer.inner, token) or "" for token in self._waiting
            )
        except Exception:
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._tokenizer.decode(self._waiting)


def load_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a checkpoint's folder.

    Raises `BadInput` where there is none, or its files are broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = " (only a sentencepiece model)" if (folder / "tokenizer.model").is_file() else ""
        raise BadInput(
            f"{folder} has no tokenizer.json{other}",
            "give token ids with --tokens, or convert the checkpoint with `mlx_lm.convert`",
        )
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises its base class
        raise BadInput(f"{path} is no tokenizer: {str(error)[:200]}", "get it again") from None
    settings = _json(folder / "tokenizer_config.json")
    special = {name: _token_text(settings.get(name)) for name in SPECIAL}
    text = _template_text(folder, settings)
    return Tokenizer(
        inner,
        template=None if text is None else ChatTemplate(text, special),
        stop_tokens=_stop_tokens(inner, folder, config, special["eos_token"]),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise BadConfig(f"{path} is not JSON: {error}", "get the checkpoint again") from None
    if not isinstance(values, dict):
        raise BadConfig(f"{path} holds no object", "get the checkpoint again")
    return values


def _token_text(value: Any) -> str:
    """Return a special token's text: a string, or an object that holds one."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template_text(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file of its own, or a key; of several, the default one."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text("utf-8", errors="replace")
    value = settings.get("chat_template")
    if value is None:
        value = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, Mapping)}
        value = named.get("default", next(iter(named.values()), None))
    return value if isinstance(value, str) else None


def _stop_tokens(
    inner: tokenizers.Tokenizer, folder: Path, config: Mapping[str, Any], eos: str
) -> frozenset[int]:
    """Return every token that the checkpoint's files call the end of a text."""
    text_config = config.get("text_config")
    found = [
        config.get("eos_token_id"),
        _json(folder / "generation_config.json").get("eos_token_id"),
    ]
    if isinstance(text_config, Mapping):
        found.append(text_config.get("eos_token_id"))
    found.append(inner.token_to_id(eos) if eos else None)
    flat = [x for value in found for x in (value if isinstance(value, list) else [value])]
    return frozenset(x for x in flat if isinstance(x, int) and not isinstance(x, bool))
