"""What a shared beginning saves: TTFT of the tenth session against the first, and parked dialogues against computing.

    python -m benchmarks prefix [--json] [--tokens 1024,4096] [--model NAME]

Ten sessions send a prompt of one system text and a question of their own with the time of day in it, through the API's
text service, one after the other. Then more named dialogues than caches take turns: each comes back from host memory.
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
from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store

MODEL = "qwen2.5-coder-0.5b-instruct"
SESSIONS = 10
CACHES = 2
PARKED_BYTES = 2 << 30
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--tokens", default="1024,4096", help="lengths of the shared beginning, comma-separated")
    parser.add_argument("--model", default=MODEL, help="a model of kind llm")
    options = parser.parse_args(arguments)
    lengths = [int(length) for length in options.tokens.split(",")]
    folder: Path = Store.open().ensure(options.model)
    lm = CausalLM.load(folder, context_tokens=max(lengths) + 128)
    lm.warm_up()
    rows = [measure(lm, length) for length in lengths]
    if options.json:
        print(json.dumps({"model": options.model, "rows": rows}))
    else:
        print(table(rows))
    return 0
