"""The language models of a profile by role: which does what, and how its engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cockpit.profile.base import Section, Threads


class DialogueLlmSection(Section):
    """The language model that talks, chooses among commands, and answers requests that name no other."""

    model: str = "qwen2.5-coder-0.5b-instruct"
    """A model of kind llm in the registry."""
    threads: Threads = 2
    """Compute threads. More than the cores of its lane makes it slower."""
    context_tokens: Annotated[int, Field(strict=True, ge=256, le=32_768)] = 2_048
    """Room for instructions, tools, history and reply. On a GPU memory grows with it, used or not; on the CPU it grows
    as texts do, and is planned for the whole."""
    max_reply_tokens: Annotated[int, Field(strict=True, ge=8, le=1_024)] = 96
    """A reply is cut here."""

    @model_validator(mode="after")
    def _room(self) -> DialogueLlmSection:
        if self.max_reply_tokens * 2 > self.context_tokens:
            raise ValueError(f"max_reply_tokens {self.max_reply_tokens} is more than half of context_tokens")
        return self


class BackgroundLlmSection(Section):
    """A language model of its own for requests of low priority, small enough to take little from the others."""

    model: str
    """A model of kind llm in the registry. The dialogue's own: both roles share it, as without this section."""
    threads: Threads | None = None
    """Compute threads; those of the dialogue's model when unset."""
    context_tokens: Annotated[int, Field(strict=True, ge=256, le=32_768)] | None = None
    """Room for prompt and answer; that of the dialogue's model when unset."""


LlmRole = Literal["dialogue", "background"]


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """One model with every role that it has, and the settings of its engine."""

    name: str
    roles: tuple[LlmRole, ...]
    threads: int
    context_tokens: int


class LlmSection(Section):
    """Language models by role. Its older form, `llm: {model: ...}`, is that of the dialogue."""

    dialogue: DialogueLlmSection = DialogueLlmSection()
    """The one that talks with the driver."""
    background: BackgroundLlmSection | None = None
    """The one for background requests. `null`: the dialogue's does them too."""

    @model_validator(mode="before")
    @classmethod
    def _older_form(cls, data: Any) -> Any:
        return by_role(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _one_engine(self) -> LlmSection:
        own = self.background
        if own is not None and own.model == self.dialogue.model:
            for key in ("threads", "context_tokens"):
                if getattr(own, key) not in (None, getattr(self.dialogue, key)):
                    raise ValueError(f"both roles name {own.model} and share its engine: leave background.{key} out")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler.resolve_ref_schema(handler(schema))
        older = DialogueLlmSection.model_json_schema()["properties"]
        about = {name: field | {"description": f"As dialogue.{name}."} for name, field in older.items()}
        made["properties"] = made["properties"] | about
        return made

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Each model once, the dialogue's first."""
        talk, own = self.dialogue, self.background
        if own is None or own.model == talk.model:
            return (LanguageModel(talk.model, ("dialogue", "background"), talk.threads, talk.context_tokens),)
        return (
            LanguageModel(talk.model, ("dialogue",), talk.threads, talk.context_tokens),
            LanguageModel(
                own.model,
                ("background",),
                own.threads or talk.threads,
                own.context_tokens or talk.context_tokens,
            ),
        )

    def named(self, role: LlmRole) -> str:
        """The model of a role."""
        return next(model.name for model in self.models if role in model.roles)


def by_role(llm: dict[str, Any]) -> dict[str, Any]:
    """A profile's `llm` with the keys of its older form under `dialogue`; the same mapping where it has roles."""
    if not llm or llm.keys() & LlmSection.model_fields.keys():
        return llm
    return {"dialogue": llm}
