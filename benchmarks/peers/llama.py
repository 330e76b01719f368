"""llama.cpp through llama-cpp-python, as its documentation shows it. Runs in a process of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.timing import tokens_per_s

SENTENCE_ENDS = ".!?。！？"


class LlamaSpeed:
    """Prefill, decode and logits of a GGUF file."""

    def __init__(self, gguf: Path, threads: int, context_tokens: int, decode_tokens: int) -> None:
        self._gguf = gguf
        self._threads = threads
        self._context_tokens = context_tokens
        self._decode_tokens = decode_tokens
        self._model = self._load(logits_all=False)

    def _load(self, *, logits_all: bool) -> Any:
        from llama_cpp import Llama

        return Llama(
            str(self._gguf),
            n_ctx=self._context_tokens,
            n_batch=512,
            n_threads=self._threads,
            n_threads_batch=self._threads,
            logits_all=logits_all,
            verbose=False,
        )

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        """(prefill, decode) in tokens per second."""
        self._model.reset()
        start_s = time.perf_counter()
        stream = self._model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0, reset=True)
        return tokens_per_s(stream, start_s, len(prompt), self._decode_tokens)

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Logits after every token, (n, vocab) float32."""
        model = self._load(logits_all=True)
        model.eval(tokens)
        logits = np.array(model.scores[: len(tokens)], np.float32)
        model.close()
        return logits


class LlamaAssistant:
    """One JSON tool call under llama.cpp's own grammar, or the first sentence of a free answer.

    tools: name -> JSON Schema. The prompt's prefix is cached, as llama.cpp does by itself.
    """

    def __init__(self, gguf: Path, threads: int, tools: dict[str, dict[str, Any]]) -> None:
        from llama_cpp import Llama

        self._model: Any = Llama(
            model_path=str(gguf), n_threads=threads, n_threads_batch=threads, n_ctx=4096, verbose=False
        )
        self._system = (
            "You are the voice assistant of a car. Choose exactly one tool for what the driver says and answer "
            'with one JSON object {"name": ..., "arguments": {...}}. Use the tool "chat" when no other fits.\nTools:\n'
            + "\n".join(json.dumps({"name": n, "parameters": s}, ensure_ascii=False) for n, s in tools.items())
            + '\n{"name": "chat", "parameters": {}}'
        )
        self._schema = {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, "arguments": schema},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
                for name, schema in [*tools.items(), ("chat", {"type": "object", "additionalProperties": False})]
            ]
        }

    def choose(self, text: str) -> tuple[dict[str, Any], float]:
        """The call for what was said ("chat" when the answer is no JSON), and the ms it took."""
        start_s = time.perf_counter()
        answer = self._model.create_chat_completion(
            [{"role": "system", "content": self._system}, {"role": "user", "content": text}],
            response_format={"type": "json_object", "schema": self._schema},
            temperature=0.0,
            max_tokens=96,
        )
        took_ms = (time.perf_counter() - start_s) * 1e3
        try:
            call: dict[str, Any] = json.loads(answer["choices"][0]["message"]["content"])
        except json.JSONDecodeError:
            call = {"name": "chat", "arguments": {}}
        return call, took_ms

    def chat(self, text: str) -> tuple[str, float]:
        """The first sentence of a free answer, streamed, and the ms until it was complete."""
        start_s = time.perf_counter()
        said = ""
        for piece in self._model.create_chat_completion(
            [
                {"role": "system", "content": "You are the voice assistant of a car. Answer in one short sentence."},
                {"role": "user", "content": text},
            ],
            temperature=0.0,
            max_tokens=48,
            stream=True,
        ):
            said += piece["choices"][0]["delta"].get("content", "")
            if said and said[-1] in SENTENCE_ENDS:
                break
        return said, (time.perf_counter() - start_s) * 1e3
