"""The checkpoint's chat template, rendered as given, in a sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.engines.llm.tokenizer import TextTokenizer
from models.errors import InputError

_DATA = re.compile("\ue000(\\d+)\ue001")
"""Where a text stands in a rendered template: private-use characters, which `encode` takes out of the texts first."""
_MARKS = str.maketrans("", "", "\ue000\ue001")

Message = Mapping[str, Any]


def _raise(message: str) -> None:
    raise InputError(f"the checkpoint's chat template refuses these messages: {message}; change the messages")


def _to_json(value: Any, indent: int | None = None) -> str:
    """As the templates expect: no HTML escapes, unlike jinja2's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """Renders messages to the text the checkpoint was trained on."""

    def __init__(self, template: jinja2.Template | None, bos_token: str, eos_token: str) -> None:
        self._template = template
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def load(cls, model_dir: Path, *, bos_token: str, eos_token: str) -> ChatTemplate:
        """A folder without chat_template.jinja (a base model) loads, and `render` says so."""
        path = model_dir / "chat_template.jinja"
        if not path.is_file():
            return cls(None, bos_token, eos_token)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        return cls(environment.from_string(path.read_text(encoding="utf-8")), bos_token, eos_token)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """messages: mappings with "role" and "content". Raises InputError without a template or if it refuses."""
        if self._template is None:
            raise InputError("this checkpoint has no chat template (a base model); give it plain text")
        return self._template.render(
            messages=list(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            **self._tokens,
        )

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: TextTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of the rendered messages. Contents are data: control marks written in them stay plain text.

        tools: their definitions come from the program, not from outside, and are rendered as the template does.
        Raises InputError as `render` does.
        """
        texts: list[str] = []

        def kept(message: Message) -> dict[str, Any]:
            content = message.get("content")
            if not isinstance(content, str) or not content:
                return dict(message)
            texts.append(content.translate(_MARKS))
            return {**message, "content": f"\ue000{len(texts) - 1}\ue001"}

        rendered = self.render(
            [kept(message) for message in messages], tools=tools, add_generation_prompt=add_generation_prompt
        )
        ids: list[int] = []
        for number, part in enumerate(_DATA.split(rendered)):
            ids += tokenizer.encode_plain(texts[int(part)]) if number % 2 else tokenizer.encode(part)
        return ids
