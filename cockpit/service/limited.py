"""Commands without a model: what the rules understand in one way only is done, everything else is refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import orjson

from cockpit.scheduling.control_socket import language_of
from cockpit.service.state import ServiceState
from models.errors import InputError
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.nlg.device_notices import ONLY_PLAIN


class LimitedAnswers:
    """Answers lines of the control socket: `status`, and `ask` for one plain command. Any thread."""

    def __init__(self, state: ServiceState, dialogue: DialogueManager) -> None:
        """dialogue: without a language model and without the parser's."""
        self._state = state
        self._dialogue = dialogue
        self._lock = threading.Lock()
        self._turn_id = 0

    def answer(self, line: bytes) -> bytes:
        """See cockpit.scheduling.control_socket.Orders. Never raises for what a caller may have written."""
        try:
            request = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return _failed(f"not a JSON line: {error}")
        op = request.get("op") if isinstance(request, dict) else None
        if op == "status":
            return orjson.dumps({"ok": True, "service": self._state.status().as_json()}) + b"\n"
        if op != "ask":
            return _failed(f"unknown op {op!r}; without models there are: status, ask")
        try:
            return orjson.dumps({"ok": True, **self.ask(request)}) + b"\n"
        except InputError as error:
            return _failed(str(error))

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """`text`, `language` -> `reply`, `acted`. Raises InputError."""
        text, language = str(request.get("text", "")).strip(), language_of(request)
        if not text:
            raise InputError("nothing to do; give a command")
        with self._lock:
            self._turn_id += 1
            return self._turn(text, language)

    def _turn(self, text: str, language: Language) -> dict[str, Any]:
        """One command that leaves one meaning; several, or a doubtful one, are left to a chain with models."""
        dialogue = self._dialogue
        clauses = dialogue.interpreter.parse(text, language).clauses
        if len(clauses) == 1 and len(clauses[0].candidates) == 1:
            plan = dialogue.plan(text, language, turn_id=self._turn_id)
            if plan.decided_by == "rule" and len(plan.calls) == 1 and not plan.chat:
                results = dialogue.execute(plan, self._turn_id)
                acted = any(result.status == "done" for result in results)
                reply = dialogue.reply(plan, results, language, turn_id=self._turn_id)
                return {"reply": reply, "acted": acted}
        return {"reply": ONLY_PLAIN[language], "acted": False}


def _failed(message: str) -> bytes:
    return orjson.dumps({"ok": False, "error": message, "exit_code": InputError.exit_code}) + b"\n"
