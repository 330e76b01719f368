"""The checkpoint's chat template, rendered as given, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.errors import InputError

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
