"""Chat templates: the checkpoint's own Jinja text, rendered in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qwisp.errors import BadInput

MAX_TEMPLATE_CHARS = 1_000_000


class _Generation(Extension):
    """`{% generation %}` marks what an assistant says, for training; here it marks nothing."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A template that can be rendered often. It reaches no files, no attributes of Python objects,
    no environment: a checkpoint is data, whatever it says.

    `special` names the checkpoint's special tokens (`bos_token`, `eos_token`); `today` is the day
    that `strftime_now` tells.
    """

    def __init__(self, text: str, special: Mapping[str, str] | None = None) -> None:
        if len(text) > MAX_TEMPLATE_CHARS:
            raise BadInput(f"the chat template has {len(text):,} characters", "use --raw")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._special = dict(special or {})
        self._environment = environment
        self._template = _guarded(lambda: environment.from_string(text))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        today: datetime.datetime | None = None,
        add_generation_prompt: bool = True,
        **more: Any,
    ) -> str:
        """Return the prompt of a conversation, ending where the assistant is to speak.

        Raises `BadInput` for what the template refuses or cannot render.

        >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        ...     "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
        >>> template.render([{"role": "user", "content": "hi"}])
        '<user>hi<assistant>'
        """
        day = today or datetime.datetime(2026, 1, 1)

        def strftime_now(form: str) -> str:
            return day.strftime(form)

        values = self._special | {
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": strftime_now,
            **more,
        }
        return _guarded(lambda: self._template.render(values))


def _guarded(make: Any) -> Any:
    """Return what `make` returns; whatever a template does wrong becomes an error of two lines."""
    try:
        return make()
    except BadInput:
        raise
    except (TemplateError, RecursionError, TypeError, ValueError, KeyError) as error:
        what = str(error).partition("\n")[0][:200]
        raise BadInput(
            f"the chat template failed: {what}", "use --raw, or correct the messages"
        ) from None
    except (ArithmeticError, AttributeError, IndexError, OverflowError, MemoryError) as error:
        raise BadInput(f"the chat template failed: {error}", "use --raw") from None


def _refuse(message: str) -> str:
    raise BadInput(f"the chat template refuses: {message[:200]}", "change the messages")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as templates expect it: not escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
