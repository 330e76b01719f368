"""What a shared beginning saves: TTFT of the tenth session against the first, and parked dialogues against computing.

    python -m benchmarks prefix [--json] [--tokens 1024,4096] [--sessions 8,32] [--model NAME]

Ten sessions send a prompt of one system text and a question of their own with the time of day in it, through the API's
text service, one after the other. Then more named dialogues than caches take turns: each comes back from host memory.
Last, what so many texts with the beginning take in memory when they show one copy of it and when each has its own, and
whether both go on with the same tokens.
"""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line
from cockpit.api.errors import ApiError
from cockpit.api.generation import Finished, Piece, TextRequest
from cockpit.api.text import TextService
from cockpit.cli.output import table_lines
from cockpit.telemetry.memory_use import resident_bytes
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.store.store import Store

MODEL = "qwen2.5-coder-0.5b-instruct"
SESSIONS = 10
CACHES = 2
PARKED_BYTES = 2 << 30
MIB = 1 << 20
TEXT_TOKENS = 1024
"""Of the shared beginning whose memory is compared."""
REPLY_TOKENS = 4
SYSTEM = "The driver may ask for warmth, windows, music and the way; every answer is one short sentence. "
QUESTION = "\nIt is 08:{minute:02d}. Question {minute}: how far is it?\n"


def measure(lm: CausalLM, prefix_tokens: int) -> dict[str, Any]:
    """One length. Times in ms. tenth_over_first: TTFT with the beginning copied over TTFT with it computed."""
    encode = lm.tokenizer.encode
    prefix = (encode(SYSTEM) * (prefix_tokens // len(encode(SYSTEM)) + 1))[:prefix_tokens]
    prompts = [tuple(prefix + encode(QUESTION.format(minute=minute))) for minute in range(SESSIONS)]
    service = TextService(lm, most_running=CACHES, parked_bytes=PARKED_BYTES)
    try:
        first_round = [_ask(service, prompt, f"d{index}") for index, prompt in enumerate(prompts)]
        again = [
            _ask(service, (*prompt, *encode("\nAnd from there?\n")), f"d{index}")
            for index, prompt in enumerate(prompts[: SESSIONS - CACHES])
        ]
        parked = service.pool.status().parked
        task = service.stats.shown()["dialogue_task"]
    finally:
        service.close()
    first, last = first_round[0], first_round[-1]
    return {
        "prefix_tokens": prefix_tokens,
        "prompt_tokens": len(prompts[-1]),
        "first_ttft_ms": first.ttft_ms,
        "tenth_ttft_ms": last.ttft_ms,
        "tenth_reused_tokens": last.cached_tokens,
        "tenth_over_first": last.ttft_ms / first.ttft_ms,
        "restored_ttft_ms": statistics.median(answer.ttft_ms for answer in again),
        "restored_over_computed": statistics.median(answer.ttft_ms for answer in again) / first.ttft_ms,
        "copies": copies(lm, prefix),
        "parked_mb": parked.bytes / (1 << 20),
        "prefix_hit_rate": task["prefix_hit_rate"],
    }


def copies(lm: CausalLM, tokens: Sequence[int]) -> dict[str, float]:
    """ms of each way to get the same rows into a cache: computed, copied from a text, parked, put back."""
    donor, heir = lm.open_session(), lm.open_session()

    def timed(work: Any) -> float:
        start_s = time.perf_counter()
        work()
        return (time.perf_counter() - start_s) * 1e3

    computed = timed(lambda: donor.set_tokens(tokens))
    adopted = timed(lambda: heir.adopt(donor, tokens))
    kept: list[Any] = []
    parked = timed(lambda: kept.append(donor.park()))
    heir.forget()
    restored = timed(lambda: heir.restore(kept[0], tokens))
    assert heir.cached == len(tokens)
    donor.close()
    heir.close()
    return {"computed_ms": computed, "adopted_ms": adopted, "parked_ms": parked, "restored_ms": restored}


def texts(lm: CausalLM, computed: LmSession, count: int) -> dict[str, Any]:
    """`count` texts that begin alike: memory (Pss, MiB) after an answer of each, and ms per text to take the beginning
    over, showing one copy and with a copy each.

    computed: a text of the beginning.
    """
    prefix = computed.tokens
    questions = [lm.tokenizer.encode(QUESTION.format(minute=minute)) for minute in range(count)]
    batch = lm.open_batch()
    row: dict[str, Any] = {"texts": count, "prefix_tokens": len(prefix)}
    said = []
    for name, open_session in (("copied", lm.open_session), ("shown", batch.open)):  # texts of a batch share
        first, *others = (open_session() for _ in range(count))
        before, times_ms = resident_bytes(), []
        first.adopt(computed, prefix)
        for session in others:
            start_s = time.perf_counter()
            session.adopt(first, prefix)
            times_ms.append((time.perf_counter() - start_s) * 1e3)
        going = [_goes_on(session, prefix, ids) for session, ids in zip((first, *others), questions, strict=True)]
        said.append(going)
        row |= {
            f"{name}_mb": (resident_bytes() - before) / MIB,
            f"{name}_second_ms": times_ms[0],
            f"{name}_later_ms": statistics.median(times_ms[1:]),
        }
        for session in (first, *others):
            session.close()
    batch.close()
    return {**row, "equal_texts": sum(one == other for one, other in zip(*said, strict=True))}


def _goes_on(session: LmSession, prefix: Sequence[int], question: Sequence[int]) -> list[int]:
    session.set_tokens([*prefix, *question])
    return list(session.generate(max_new_tokens=REPLY_TOKENS))


def _ask(service: TextService, prompt: tuple[int, ...], name: str) -> Finished:
    messages: queue.Queue[Piece | Finished | ApiError] = queue.Queue()
    service.submit(TextRequest(prompt, "dialogue_task", REPLY_TOKENS, session=name), messages.put)
    while True:
        message = messages.get()
        if isinstance(message, ApiError):
            raise message
        if isinstance(message, Finished):
            return message


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["shared tokens   first TTFT   tenth TTFT   ratio   back from host memory   ratio   copied   put back"]
    for row in rows:
        ways = row["copies"]
        lines.append(
            f"{row['prefix_tokens']:13}{row['first_ttft_ms']:10.0f} ms{row['tenth_ttft_ms']:10.0f} ms"
            f"{row['tenth_over_first']:8.3f}{row['restored_ttft_ms']:21.0f} ms{row['restored_over_computed']:8.3f}"
            f"{ways['adopted_ms']:7.1f} ms{ways['restored_ms']:8.1f} ms"
        )
        slower = ways["computed_ms"] / ways["restored_ms"]
        lines.append(f"  computing the same rows takes {ways['computed_ms']:.0f} ms, {slower:.0f} times as long")
    return "\n".join(lines)


def table_of_texts(rows: Sequence[dict[str, Any]]) -> str:
    columns = (
        ("texts", "{texts}"),
        ("a copy each", "{copied_mb:.0f} MB"),
        ("one copy", "{shown_mb:.0f} MB"),
        ("a copy takes", "{copied_later_ms:.1f} ms"),
        ("storing for the second", "{shown_second_ms:.1f} ms"),
        ("showing", "{shown_later_ms:.1f} ms"),
        ("equal answers", "{equal_texts}"),
    )
    return "\n".join(
        table_lines(tuple(name for name, _ in columns), [[f.format(**row) for _, f in columns] for row in rows])
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--tokens", default="1024,4096", help="lengths of the shared beginning; empty: none")
    parser.add_argument("--model", default=MODEL, help="a model of kind llm")
    parser.add_argument("--sessions", default="8,32", help=f"numbers of texts with {TEXT_TOKENS} shared tokens")
    options = parser.parse_args(arguments)
    lengths = [int(length) for length in options.tokens.split(",") if length]
    folder: Path = Store.open().ensure(options.model)
    lm = CausalLM.load(folder, context_tokens=max([TEXT_TOKENS, *lengths]) + 128)
    lm.warm_up()
    rows = [measure(lm, length) for length in lengths]
    computed = lm.open_session()
    computed.set_tokens((lm.tokenizer.encode(SYSTEM) * TEXT_TOKENS)[:TEXT_TOKENS])
    beside = [texts(lm, computed, int(count)) for count in options.sessions.split(",")]
    if options.json:
        print(json.dumps({"model": options.model, "rows": rows, "texts": beside}))
    else:
        print(f"{table(rows)}\n\n{table_of_texts(beside)}")
    return 0
