"""The checkpoint's chat template, or its family's, rendered as given, in a sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.engines.llm.chat_families import FAMILY_TEMPLATES
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
    def load(cls, model_dir: Path, *, architecture: str, bos_token: str, eos_token: str) -> ChatTemplate:
        """The folder's chat_template.jinja; where the checkpoint has none (a base model), that of its family.

        A folder with neither loads, and `render` says so.
        """
        path = model_dir / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else FAMILY_TEMPLATES.get(architecture)
        if source is None:
            return cls(None, bos_token, eos_token)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        return cls(environment.from_string(source), bos_token, eos_token)

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
        """Token ids of the rendered messages. Whatever stands in them is data: a control mark written in a content, in
        a call (its name, its arguments) or in a tool's definition stays plain text.

        Raises InputError as `render` does.
        """
        kept = _Data(tokenizer)
        rendered = self.render(
            [kept.message(message) for message in messages],
            tools=None if tools is None else [kept.marks_out_of(tool) for tool in tools],
            add_generation_prompt=add_generation_prompt,
        )
        ids: list[int] = []
        for number, part in enumerate(_DATA.split(rendered)):
            ids += tokenizer.encode_plain(kept.texts[int(part)]) if number % 2 else tokenizer.encode(part)
        return ids


class _Data:
    """The texts that are taken out of messages before they are rendered; a placeholder stands for each."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.texts: list[str] = []
        self._tokenizer = tokenizer

    def message(self, message: Message) -> dict[str, Any]:
        """Its content is taken out, and of its other texts those that hold a mark."""
        made = {key: value if key == "role" else self.marks_out_of(value) for key, value in message.items()}
        content = message.get("content")
        if isinstance(content, str) and content:
            made["content"] = self._placeholder(content)
        return made

    def marks_out_of(self, value: Any) -> Any:
        """`value` without texts that hold a mark, keys included. The others stay: how a text is cut into tokens
        depends on its neighbours, and models know calls and definitions as one text.

        Templates write these values as JSON, so what is put back is escaped as in JSON.
        """
        if isinstance(value, str):
            text = value.translate(_MARKS)
            written = json.dumps(text, ensure_ascii=False)[1:-1]
            plain = self._tokenizer.encode(text) == self._tokenizer.encode_plain(text)
            return text if plain else self._placeholder(written)
        if isinstance(value, Mapping):
            return {self.marks_out_of(key): self.marks_out_of(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.marks_out_of(item) for item in value]
        return value

    def _placeholder(self, text: str) -> str:
        self.texts.append(text.translate(_MARKS))
        return f"\ue000{len(self.texts) - 1}\ue001"
