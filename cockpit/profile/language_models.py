"""The language models of a profile by role: which does what, and how its engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cockpit.profile.base import Flag, Section, Threads
from cockpit.profile.orchestration import Context
from cockpit.profile.units import Duration, between

KeepRatio = Annotated[float, Field(strict=True, ge=0.1, le=1)]


def _safe_url(url: str) -> str:
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url} is no address of an API, such as https://llm.example.org/v1")
    if parts.username or parts.password:
        raise ValueError("a secret does not belong into the url: put it into token_file")
    if parts.scheme == "http" and not local:
        raise ValueError(f"{url} would send what is said unencrypted: use https")
    return url


class RemoteSection(Section):
    """A server outside the car that free talk may go to: see docs/fleet.md. Commands, trips and tools never leave."""

    url: Annotated[str, AfterValidator(_safe_url)]
    """Address of an OpenAI-compatible API with its `/v1`. https, or http to this machine."""
    model: Annotated[str, Field(min_length=1)]
    """The model's name there."""
    token_file: Path | None = None
    """File with the bearer token, readable by this process's user only; `null`: none is sent."""
    deadline: Annotated[Duration, between(Duration, "100ms", "30s")] = Duration.parse("1500ms")
    """First words later than this are of no use, nor is what comes after such a pause. The model in the car begins when
    they are later than 95 of 100 were before, and at half of this while that is not known yet."""
    failures: Annotated[int, Field(strict=True, ge=1, le=100)] = 3
    """After so many failures in a row the server is left alone for `rest`."""
    rest: Annotated[Duration, between(Duration, "1s", "60min")] = Duration.parse("30s")
    """How long."""
    history: Flag = False
    """`true`: earlier free talk goes with a question. `false`: the question alone."""


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
    kv_keep_ratio: KeepRatio = 1.0
    """Of a long text's keys and values between its first turn and its last turns, this share is kept, those with the
    highest importance; on the CPU only, see docs/context.md. 1.0: all of them."""
    kv_keep_floor: KeepRatio = 0.6
    """A lower kv_keep_ratio is refused: what a car may forget is decided once, by who answers for it."""
    remote: RemoteSection | None = None
    """A server that answers free talk where it is in time. `null`: nothing that is said leaves the car."""

    @model_validator(mode="after")
    def _room(self) -> DialogueLlmSection:
        if self.max_reply_tokens * 2 > self.context_tokens:
            raise ValueError(f"max_reply_tokens {self.max_reply_tokens} is more than half of context_tokens")
        return self

    @field_validator("kv_keep_ratio")
    @classmethod
    def _where_rows_are_dropped(cls, ratio: float, info: ValidationInfo) -> float:
        if ratio < 1 and isinstance(info.context, Context) and info.context.facts.device != "cpu":
            raise ValueError("keys and values are dropped on the CPU only, and device is cuda: leave it at 1.0")
        return ratio

    @model_validator(mode="after")
    def _above_floor(self) -> DialogueLlmSection:
        if self.kv_keep_ratio < self.kv_keep_floor:
            raise ValueError(
                f"kv_keep_ratio {self.kv_keep_ratio:g} is below kv_keep_floor {self.kv_keep_floor:g}: harder gating "
                "loses what was said (docs/results/kv-gate-cpu.md); raise it, or lower the floor knowingly"
            )
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
    kv_keep_ratio: float = 1.0


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
        about = {
            name: field | {"description": f"As dialogue.{name}."} for name, field in older.items() if name != "remote"
        }
        made["properties"] = made["properties"] | about
        return made

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Each model once, the dialogue's first."""
        talk, own = self.dialogue, self.background
        if own is None or own.model == talk.model:
            return (_talking(talk, ("dialogue", "background")),)
        return (
            _talking(talk, ("dialogue",)),
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


def _talking(talk: DialogueLlmSection, roles: tuple[LlmRole, ...]) -> LanguageModel:
    return LanguageModel(talk.model, roles, talk.threads, talk.context_tokens, talk.kv_keep_ratio)


def by_role(llm: dict[str, Any]) -> dict[str, Any]:
    """A profile's `llm` with the keys of its older form under `dialogue`; the same mapping where it has roles."""
    if not llm or llm.keys() & LlmSection.model_fields.keys():
        return llm
    return {"dialogue": llm}
