"""The client's own agent loop through the API, with OpenAI's client: several rounds, parallel calls, their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest

from cockpit.api.chat import calls_in, prompt_of
from cockpit.api.errors import ApiError
from cockpit.api.schema import ChatRequest
from models.engines.llm.causal_lm import CausalLM


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function("find_charger", "find the nearest charger to a city", city={"enum": ["Munich", "Berlin"]}),
    function("get_weather", "the weather in a city", city={"enum": ["Munich", "Berlin"]}),
]
RESULTS = {"find_charger": '{"name": "North Gate", "km": 3.4}', "get_weather": '{"celsius": 18}'}


@pytest.fixture
def chat(served: Any) -> Iterator[Any]:
    transport = httpx.HTTPTransport(uds=str(served.path))
    with httpx.Client(transport=transport) as http:
        yield openai.OpenAI(api_key="none", base_url="http://cockpit/v1", http_client=http).chat.completions


def answered(message: Any) -> list[dict[str, Any]]:
    """The assistant's message and the results of its calls, the last call's first."""
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]} for call in message.tool_calls
    ]
    return [message.model_dump(exclude_none=True), *reversed(results)]


def test_two_rounds_and_an_answer(chat: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "Find a charger in Munich, and tell me the weather there."}]
    names = []
    for name in ("find_charger", "get_weather"):
        choice = {"type": "function", "function": {"name": name}}
        made = chat.create(model="qwen", messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=80).choices[0]
        assert made.finish_reason == "tool_calls"
        names += [call.function.name for call in made.message.tool_calls]
        assert json.loads(made.message.tool_calls[0].function.arguments)["city"] == "Munich"
        messages += answered(made.message)
    assert names == ["find_charger", "get_weather"]
    last = chat.create(model="qwen", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=60).choices[0]
    assert last.finish_reason == "stop"
    assert not last.message.tool_calls
    assert "18" in last.message.content or "3.4" in last.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_of_one_answer(chat: Any, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "Call get_weather for Munich and get_weather for Berlin."}]
    made = chat.create(
        model="qwen", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=120, stream=stream
    )
    if stream:
        deltas = [call for chunk in made for call in chunk.choices[0].delta.tool_calls or ()]
        assert [call.index for call in deltas] == list(range(len(deltas)))
        calls = [call.function for call in deltas]
        ids = [call.id for call in deltas]
    else:
        calls = [call.function for call in made.choices[0].message.tool_calls]
        ids = [call.id for call in made.choices[0].message.tool_calls]
    assert len(calls) == len(set(ids)) >= 2
    assert {json.loads(call.arguments)["city"] for call in calls[:2]} == {"Munich", "Berlin"}
    one = chat.create(
        model="qwen",
        messages=messages,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
    )
    assert len(one.choices[0].message.tool_calls) == 1


def called(*names: str) -> dict[str, Any]:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_results_stand_in_the_order_of_their_calls(served: Any) -> None:
    results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("a", "b", "c")]
    asked = [{"role": "user", "content": "x"}, called("a", "b", "c")]
    forward = ChatRequest.model_validate({"messages": [*asked, *results]})
    backward = ChatRequest.model_validate({"messages": [*asked, *reversed(results)]})
    assert prompt_of(forward, served.text.model) == prompt_of(backward, served.text.model)


@pytest.mark.parametrize("call_id", ["other", None])
def test_a_result_of_no_call_is_refused(chat: Any, call_id: str | None) -> None:
    messages = [
        {"role": "user", "content": "x"},
        called("a"),
        {"role": "tool", "tool_call_id": call_id, "content": "y"},
    ]
    with pytest.raises(openai.BadRequestError, match="tool_call_id"):
        chat.create(model="qwen", messages=messages)


def test_a_call_that_is_cut_off_is_dropped_whole(chat: Any) -> None:
    whole = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    assert calls_in(whole + '\n<tool_call>\n{"name": "b", "argu')[1][0]["function"]["name"] == "a"
    assert calls_in('<tool_call>\n{"name": "b", "argu') == ("", [])
    assert len(calls_in(f"{whole}\n{whole}")[1]) == 1, "written twice it is one call"
    messages = [{"role": "user", "content": "What is the weather in Munich?"}]
    made = chat.create(model="qwen", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=6).choices[0]
    assert (made.finish_reason, made.message.tool_calls) == ("length", None)


def test_a_template_that_knows_no_tools_loses_none(model_dir: Callable[[str], Path]) -> None:
    lm = CausalLM.load(model_dir("smollm2-135m-instruct"), context_tokens=512)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        called("get_weather"),
        {"role": "tool", "tool_call_id": "get_weather", "content": "18 degrees"},
    ]
    request = ChatRequest.model_validate({"messages": messages, "tools": TOOLS})
    text = lm.tokenizer.inner.decode(list(prompt_of(request, lm)), skip_special_tokens=False)
    for part in ("Be brief.", "find_charger", '{"name": "get_weather", "arguments": {}}', "18 degrees"):
        assert part in text
    with pytest.raises(ApiError, match="tool_call_id"):
        prompt_of(ChatRequest.model_validate({"messages": messages[3:]}), lm)
