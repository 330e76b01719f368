"""Chat completions of an OpenAI-compatible server (vLLM, SGLang, TensorRT-LLM, llama.cpp), streamed."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cockpit.token_file import read_token
from models.errors import StartupError
from pipeline.dialogue.remote import Messages, RemoteLimits, RemoteTalk, ServerFailed
from pipeline.dialogue.talk import AnswerCut

if TYPE_CHECKING:
    from cockpit.profile.language_models import RemoteSection

_LINE_CHARACTERS = 65_536
_ANSWER_CHARACTERS = 16_384
_CONNECT_S = 1.0


class ChatServer:
    """See TalkServer. url: up to and with `/v1`. token: the bearer token. Connections are kept between answers."""

    def __init__(self, url: str, model: str, token: str | None) -> None:
        try:
            import httpx2
        except ModuleNotFoundError as error:
            raise StartupError('llm.dialogue.remote needs httpx2; run: pip install "cockpit-voice[remote]"') from error
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of every request
        self._httpx = httpx2
        self.host = urlsplit(url).netloc
        self._url = url.rstrip("/") + "/chat/completions"
        self._model = model
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx2.Client(headers=headers, follow_redirects=False, trust_env=False)

    def stream(self, messages: Messages, most_tokens: int, wait_s: float) -> Generator[str]:
        """See TalkServer. Raises AnswerCut where the server stopped at its own limit of tokens."""
        body = {"model": self._model, "messages": list(messages), "stream": True, "max_tokens": most_tokens}
        timeout = self._httpx.Timeout(wait_s, connect=min(wait_s, _CONNECT_S))
        try:
            with self._client.stream("POST", self._url, json=body, timeout=timeout) as response:
                if response.status_code != 200:
                    raise ServerFailed(f"HTTP status {response.status_code}")
                yield from _pieces(response.iter_lines())
        except (self._httpx.HTTPError, self._httpx.StreamError) as error:
            raise ServerFailed(f"{type(error).__name__}: {error}"[:200]) from error

    def close(self) -> None:
        self._client.close()


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Text of server-sent events. Raises ServerFailed for what is no chat completion, or ends in its midst."""
    characters = 0
    for line in lines:
        if len(line) > _LINE_CHARACTERS:
            raise ServerFailed("a line of an answer is too long")
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            choice = json.loads(data)["choices"][0]
            text, reason = choice["delta"].get("content"), choice.get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServerFailed(f"no chat completion: {type(error).__name__}") from error
        if text is not None and not isinstance(text, str):
            raise ServerFailed("the content of an answer is no text")
        if text:
            characters += len(text)
            if characters > _ANSWER_CHARACTERS:
                raise ServerFailed("an answer is too long")
            yield text
        if reason == "length":
            raise AnswerCut("the server's limit of tokens")
        if reason is not None:
            return
    raise ServerFailed("the answer ended without its end")


def open_remote(section: RemoteSection | None, most_tokens: int) -> RemoteTalk | None:
    """The server of a profile; None where it names none. Nothing is sent yet. Raises StartupError."""
    if section is None:
        return None
    token = None if section.token_file is None else read_token(section.token_file, "llm.dialogue.remote.token_file")
    server = ChatServer(section.url, section.model, token)
    limits = RemoteLimits(section.deadline.ms / 1e3, section.failures, section.rest.ms / 1e3)
    return RemoteTalk(server, most_tokens, limits, section.history)
