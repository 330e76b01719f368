"""The bodies that the API takes: OpenAI's fields as far as they are served, and this project's own.

A field that is not here is refused, never ignored. Fields whose only served value is the default accept that value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_MESSAGES = 256
MOST_TEXT = 200_000
"""Characters of one text; what fits in the context is far less and is checked in tokens."""
Text = Annotated[str, Field(max_length=MOST_TEXT)]
TaskName = Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]


class Body(BaseModel):
    """Base of every body."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TextPart(Body):
    """A part of a message's content; only text is served."""

    type: Literal["text"]
    text: Text


class FunctionCall(Body):
    """What an earlier answer called. arguments: JSON text."""

    name: str
    arguments: Text


class CalledTool(Body):
    """One call of an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One message of a dialogue."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionDefinition(Body):
    """A function that the model may call. parameters: JSON Schema of its arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Text = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; only functions are served."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    """The name in a tool choice."""

    name: str


class NamedTool(Body):
    """A tool choice that names its function."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchemaFormat(Body):
    """The schema of an answer."""

    name: str = "answer"
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {"type": "object"}
    strict: bool | None = None


class ResponseFormat(Body):
    """What an answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and only with it")
        return self


class StreamOptions(Body):
    """Extras of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Placed(Body):
    """This project's own fields: who the request is among the tasks of the process."""

    task: TaskName | None = None
    """`dialogue`, `background`, ...: as far as the profile grants it. By default the first that it grants."""
    priority: Annotated[int, Field(ge=0, le=10)] | None = None
    """The most urgent task priority that the request may have; above what is granted it is refused."""
    deadline_ms: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """From arrival; a request that is not answered by then is given up with an error."""
    session: Annotated[str, Field(pattern=r"^[\w.:-]{1,64}$")] | None = None
    """A dialogue by name: its next request finds what it computed, as long as nobody needed the memory."""


class Generated(Placed):
    """What all requests for text share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, strict=False)] = 0.0
    """0, the likeliest token, is this server's default: in a car the same words should have the same effect."""
    top_p: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    seed: int | None = None
    stop: Text | list[Text] | None = None
    n: Literal[1] = 1
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer; they are not part of it."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)


class ChatRequest(Generated):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise ValueError("tool_choice goes with tools")
        if self.tools and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("tools and a response_format of JSON exclude each other here")
        if isinstance(self.tool_choice, NamedTool) and self.tools:
            names = [tool.function.name for tool in self.tools]
            if self.tool_choice.function.name not in names:
                raise ValueError(f"tool_choice names {self.tool_choice.function.name}, tools has {', '.join(names)}")
        return self

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the answer at most, by either of OpenAI's names."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Generated):
    """POST /v1/completions. prompt: a text, whose control marks are plain text, or token ids."""

    prompt: Text | Annotated[list[int], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] = False
    best_of: Literal[1] = 1


class SpeechRequest(Placed):
    """POST /v1/audio/speech."""

    model: str | None = None
    input: Annotated[str, Field(min_length=1, max_length=4096)]
    voice: str | None = None
    language: Literal["en", "zh"] | None = None
    response_format: Literal["wav", "pcm"] = "wav"
    """`pcm`: 16-bit little-endian samples, mono, as they are made; the rate stands in the X-Sample-Rate header."""
    speed: Annotated[float, Field(ge=1, le=1, strict=False)] = 1.0
    """Only 1: the voice's own rate is the profile's to set."""


class GuidanceRequest(Body):
    """POST /v1/guidance: a prompt of the head unit's navigation."""

    text: Annotated[str, Field(min_length=1, max_length=300)]
    language: Literal["en", "zh"] | None = None
    """By its letters where it is not given."""
    manoeuvre: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """A newer prompt for the same manoeuvre takes the place of one that still waits."""
    deadline_ms: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """From arrival; a prompt that has not begun by then is not spoken."""


class TokenizeRequest(Body):
    """POST /tokenize. add_special: put the model's start token first."""

    model: str | None = None
    content: Text
    add_special: bool = False


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
