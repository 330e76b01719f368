"""Chat requests to token ids and grammars, and answers back to messages and tool calls."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from cockpit.api.errors import invalid
from cockpit.api.schema import ChatMessage, ChatRequest, NamedTool, ToolDefinition
from models.engines.base import TokenConstraint
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.chat import ChatTemplate
from models.engines.llm.grammar import JSON_STYLE, Grammar
from models.errors import InputError
from pipeline import json_codec

_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(_CALL_OPEN) + r"\s*(\{.*?\})\s*" + re.escape(_CALL_CLOSE), re.DOTALL)
_TOOLS_TOLD = (
    "You may call these functions. Write each call as "
    f'{_CALL_OPEN}{{"name": ..., "arguments": {{...}}}}{_CALL_CLOSE}; when none is needed, answer in words.\n'
)
_WORDS = r"/[^<{`\s](.|\n)*/"
"""Any text that does not begin as a call does: where none may be made, none is written as text either."""
_MOST_CALLS = 8
"""Of one answer: a small model that has begun to repeat itself ends here."""
_MOST_SCHEMA = 64 * 1024
"""Bytes of a schema: compiling takes time that others wait for."""
_SHORT_MESSAGES, _SHORT_CHARACTERS = 16, 1500


def is_short(request: ChatRequest) -> bool:
    """Whether its prompt takes less time (0.7 ms) than the way to another thread and back, and no grammar is asked."""
    messages = request.messages
    plain = request.tools is None and request.response_format is None and not any(m.tool_calls for m in messages)
    return plain and len(messages) <= _SHORT_MESSAGES and sum(len(m.text) for m in messages) <= _SHORT_CHARACTERS


def prompt_of(request: ChatRequest, model: CausalLM) -> tuple[int, ...]:
    """Token ids of the messages; what stands in a message can be no control mark. Raises ApiError."""
    tools = None if request.tools is None or request.tool_choice == "none" else [_plain(tool) for tool in request.tools]
    messages = [_message(message) for message in _in_order_of_calls(request.messages)]
    calls = tools is not None or any(message["role"] == "tool" or "tool_calls" in message for message in messages)
    try:
        if calls and not _knows_tools(model.chat):
            messages, tools = _as_texts(messages, tools), None
        return tuple(model.chat.encode(messages, model.tokenizer, tools=tools))
    except InputError as error:
        raise invalid(str(error), "messages") from error


def constraint_of(request: ChatRequest, model: CausalLM) -> TokenConstraint | None:
    """The grammar that the answer must follow; None for free text. Raises ApiError for a schema that is none."""
    form = request.response_format
    source: Mapping[str, Any] | str | None = None
    if form is not None and form.type == "json_object":
        source = {"type": "object"}
    elif form is not None and form.json_schema is not None:
        source = form.json_schema.schema_
    elif request.tools:
        source = f"start: {_WORDS}\n" if request.tool_choice == "none" else _calls_grammar(request, model)
    if source is None:
        return None
    if len(json_codec.dumps(source)) > _MOST_SCHEMA:
        raise invalid(f"the schema is larger than {_MOST_SCHEMA >> 10} KiB; shorten it", "response_format")
    try:
        return Grammar.compile(source, model.tokenizer).start()
    except InputError as error:
        raise invalid(str(error), "tools" if request.tools else "response_format") from error


def calls_in(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text without its tool calls, and these in OpenAI's form. A call that is cut off is dropped whole, and one
    that is written twice is one.
    """
    calls = []
    for written in dict.fromkeys(_CALL.findall(text)):
        try:
            call = json.loads(written)
        except ValueError:
            continue
        arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
        function = {"name": str(call.get("name", "")), "arguments": arguments}
        calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
    rest = _CALL.sub("", text)
    return rest.partition(_CALL_OPEN)[0].strip() if calls or _CALL_OPEN in rest else rest, calls


def may_call(request: ChatRequest) -> bool:
    """Whether the answer may hold tool calls: then it is only shown when it is whole."""
    return bool(request.tools) and request.tool_choice != "none"


def _calls_grammar(request: ChatRequest, model: CausalLM) -> str:
    """Calls of the tools that may be called, written as the model learnt it; with `auto`, or any other text.

    Text that begins with `<`, `{` or a code mark would be a call that was written wrongly, so it cannot be.
    """
    assert request.tools is not None
    named = request.tool_choice.function.name if isinstance(request.tool_choice, NamedTool) else None
    chosen = [tool.function for tool in request.tools if named in (None, tool.function.name)]
    one_call = {
        "x-guidance": JSON_STYLE,
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "arguments": function.parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in chosen
        ],
    }
    many = request.parallel_tool_calls is not False and named is None
    calls = f'call ("\\n" call){{0,{_MOST_CALLS - 1}}}' if many else "call"
    free = "" if request.tool_choice == "required" or named is not None else f" | {_WORDS}"
    return (
        f"start: {calls}{free}\n"
        f'call: {_mark(_CALL_OPEN, model)} "\\n" json "\\n" {_mark(_CALL_CLOSE, model)}\n'
        f"json: %json {json.dumps(one_call, ensure_ascii=False)}\n"
    )


def _mark(text: str, model: CausalLM) -> str:
    """A mark in a grammar: the model's own token where it has one, else its letters."""
    return text if model.tokenizer.inner.token_to_id(text) is not None else json.dumps(text)


def _in_order_of_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages, the results of parallel calls in the order of these: templates tell them apart by nothing else.

    Raises ApiError for a result of no call.
    """
    ordered: list[ChatMessage] = []
    places: dict[str, int] = {}
    results: list[ChatMessage] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in places:
                known = ", ".join(places) or "the last assistant message has none"
                raise invalid(
                    f"a tool message answers a call of the assistant message before it: tool_call_id "
                    f"{message.tool_call_id!r} is none of its calls ({known})",
                    "messages",
                )
            results.append(message)
            continue
        ordered += sorted(results, key=lambda result: places[result.tool_call_id or ""])
        results = []
        places = {call.id: number for number, call in enumerate(message.tool_calls or ())}
        ordered.append(message)
    return ordered + sorted(results, key=lambda result: places[result.tool_call_id or ""])


@cache
def _knows_tools(template: ChatTemplate) -> bool:
    """Whether the checkpoint's template writes tools down; others would lose them without a word."""
    probe = {"type": "function", "function": {"name": "a_probe", "description": "", "parameters": {"type": "object"}}}
    return "a_probe" in template.render([{"role": "user", "content": "x"}], tools=[probe])


def _as_texts(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Tools, calls and results as plain messages, for a model whose template knows none of them."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if made and made[-1]["role"] == "user" and messages[0] is not message:
                made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n{text}"}
            else:
                made.append({"role": "user", "content": text})
            continue
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
        written = "\n".join(f"{_CALL_OPEN}\n{call}\n{_CALL_CLOSE}" for call in calls)
        made.append({"role": message["role"], "content": "\n".join(filter(None, (message["content"], written)))})
    if tools is not None:
        told = _TOOLS_TOLD + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        own = made.pop(0)["content"] + "\n\n" if made and made[0]["role"] == "system" else ""
        made.insert(0, {"role": "system", "content": own + told})
    return made


def _message(message: ChatMessage) -> dict[str, Any]:
    """As chat templates expect it. `developer` is OpenAI's newer word for `system`."""
    made: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.text,
    }
    if message.tool_calls:
        made["tool_calls"] = [_called(call.function.name, call.function.arguments) for call in message.tool_calls]
    return made


def _called(name: str, arguments: str) -> dict[str, Any]:
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        raise invalid(f"the arguments of an earlier call of {name} are no JSON: {error}", "messages") from error
    return {"type": "function", "function": {"name": name, "arguments": parsed}}


def _plain(tool: ToolDefinition) -> dict[str, Any]:
    function = tool.function
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
        },
    }
