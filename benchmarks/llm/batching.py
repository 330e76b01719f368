"""Continuous batching: tokens per second at batch 1 to 8, short requests beside a long prompt, equality with batch 1.

    python -m benchmarks batching [--profile cpu|h200|stand-in] [--json] [--long 16384] [--window-s 60]

`steps`: the model alone, one run for the next token of 1, 2, 4 and 8 texts. `served`: eight requests through the API's
text service one after the other and together. `beside`: short requests, one after the other, while a long prompt is
computed: in chunks between tokens, and in long runs. `equal`: greedy tokens of eight texts together and each alone;
where they differ first, the two logits. `--profile h200` needs a GPU: it takes a lane of it, without the arbiter;
`--random FOLDER` (with tokenizer.json) runs a Qwen2.5-0.5B shape with random weights where there are no real ones.
"""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.devices import opened
from benchmarks.harness.report import command_line
from cockpit.api.errors import ApiError
from cockpit.api.generation import Finished, Generation, Piece, TextRequest
from cockpit.api.text import TextService
from cockpit.scheduling.batch_lease import BatchLane, UnsharedLane
from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store

TASK = "dialogue_task"
SIZES = (1, 2, 4, 8)
PROMPT_TOKENS = 256
REPLY_TOKENS = 32
SHORT_TOKENS = 24
SHORT_REPLY = 8
WHOLE_CHUNK = {"cpu": 2048, "cuda": 16_384}
"""What "not chunked" means: on a CPU the attention of 16,384 tokens at once would take 15 GB."""
FILLER = "The driver asked for a warmer cabin before the motorway, and it began to rain. "
QUESTIONS = (
    "What is the capital of France?",
    "Count from one to twenty.",
    "请用中文说你好",
    "Why is the sky blue?",
    "Name three colours.",
    "现在几点了?",
    "How do I open a window?",
    "Tell me about winter tyres.",
)


class EnteredLane(UnsharedLane):
    """A batch that has one lane of a device to itself. entered: makes the lane current in the loop's thread."""

    def __init__(self, entered: Callable[[], AbstractContextManager[Any]], chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self._entered = entered
        self._held = ExitStack()

    def wait(self, give_up: Callable[[], bool]) -> bool:
        self._held.enter_context(self._entered())
        return True

    def give_back(self) -> None:
        self._held.close()


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under test. entered: around every use of it in a thread."""

    lm: CausalLM
    device: str
    entered: Callable[[], AbstractContextManager[Any]]

    def service(self, *, chunk: int, mixed: int | None = None, parked_bytes: int = 0) -> TextService:
        def lane(_task: str) -> BatchLane:
            return EnteredLane(self.entered, chunk)

        return TextService(self.lm, lane, most_running=8, most_waiting=64, parked_bytes=parked_bytes, mixed_chunk=mixed)


class Asked:
    """One request and what came of it. piece_s: when each piece of text came."""

    def __init__(self, service: TextService, tokens: Sequence[int], most: int) -> None:
        self.began_s = time.perf_counter()
        self.piece_s: list[float] = []
        self._messages: queue.Queue[Finished | ApiError] = queue.Queue()
        self.generation: Generation = service.submit(TextRequest(tuple(tokens), TASK, most), self._take)

    def _take(self, message: Piece | Finished | ApiError) -> None:
        if isinstance(message, Piece):
            self.piece_s.append(time.perf_counter())
        else:
            self._messages.put(message)

    def finished(self) -> tuple[Finished, float]:
        """And the ms it took."""
        message = self._messages.get()
        if isinstance(message, ApiError):
            raise message
        return message, (time.perf_counter() - self.began_s) * 1e3


def steps(subject: Subject, sizes: Sequence[int], runs: int) -> list[dict[str, Any]]:
    """ms of one run and its choice, and tokens per second, by the number of texts."""
    lm = subject.lm
    rows: list[dict[str, Any]] = []
    filler = lm.tokenizer.encode(FILLER * 60)
    with subject.entered():
        batch = lm.open_batch()
        sessions = [batch.open() for _ in range(min(max(sizes), batch.width))]
        sessions[0].set_tokens(filler[:PROMPT_TOKENS])
        for index, session in enumerate(sessions):
            session.adopt(sessions[0], filler[:PROMPT_TOKENS])
            session.extend([filler[index]])
        fitting = [size for size in sizes if size <= len(sessions)]
        times: dict[int, list[float]] = {size: [] for size in fitting}
        for _ in range(runs + 2):
            for size in fitting:  # in turn, so that what else the machine does falls on all alike
                began_s = time.perf_counter()
                hidden = batch.step(sessions[:size])
                tokens = batch.head.best_each(hidden, [None] * size)
                times[size].append((time.perf_counter() - began_s) * 1e3)
                for session, token in zip(sessions[:size], tokens, strict=True):
                    session.extend([token])
        batch.close()
    for size, taken in times.items():
        ms, p99_ms = statistics.median(taken[2:]), quantile(taken[2:], 0.99)
        rows.append({"batch": size, "step_ms": ms, "p99_ms": p99_ms, "tokens_s": size / ms * 1e3})
    for row in rows:
        row["ratio"] = row["tokens_s"] / rows[0]["tokens_s"]
    return rows


def served(subject: Subject) -> dict[str, Any]:
    """Eight requests one after the other, then the same together; their prompts are cached both times."""
    lm = subject.lm
    filler = lm.tokenizer.encode(FILLER * 60)
    prompts = [filler[index : index + PROMPT_TOKENS] for index in range(8)]
    service = subject.service(chunk=256)
    try:
        for prompt in prompts:
            Asked(service, prompt, 2).finished()
        began_s = time.perf_counter()
        one_by_one = [Asked(service, prompt, REPLY_TOKENS).finished() for prompt in prompts]
        alone_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        together = [each.finished() for each in [Asked(service, prompt, REPLY_TOKENS) for prompt in prompts]]
        both_s = time.perf_counter() - began_s
        sizes = service.shown()["batch"]["steps_by_size"]
    finally:
        service.close()
    made = [sum(finished.new_tokens for finished, _ in answers) for answers in (one_by_one, together)]
    return {
        "alone_tokens_s": made[0] / alone_s,
        "together_tokens_s": made[1] / both_s,
        "ratio": made[1] / both_s / (made[0] / alone_s),
        "ttft_ms": spread([finished.ttft_ms for finished, _ in together]),
        "steps_by_size": sizes,
    }


def beside(subject: Subject, long_tokens: int, window_s: float) -> dict[str, Any]:
    """Short requests alone, beside a long prompt in chunks, and beside the same in long runs."""
    lm = subject.lm
    filler = lm.tokenizer.encode(FILLER * (long_tokens // 8 + 1))
    long_prompt = filler[5 : 5 + min(long_tokens, lm.context_tokens - 16)]
    whole = min(WHOLE_CHUNK[subject.device], len(long_prompt))
    out: dict[str, Any] = {"long_tokens": len(long_prompt), "whole_chunk": whole}
    for name, chunk, mixed in (("alone", 256, None), ("chunked", 256, None), ("whole", whole, whole)):
        service = subject.service(chunk=chunk, mixed=mixed)
        try:
            out[name] = _short_ones(service, filler, None if name == "alone" else long_prompt, window_s)
        except ApiError as error:  # a run that long may not fit
            out[name] = {"error": str(error)}
        finally:
            service.close()
    for name in ("chunked", "whole"):
        if "ms" in out[name]:
            out[name]["p99_over_alone"] = out[name]["ms"]["p99"] / out["alone"]["ms"]["p99"]
    return out


def _short_ones(
    service: TextService, filler: Sequence[int], long_prompt: Sequence[int] | None, window_s: float
) -> dict[str, Any]:
    took_ms, ttft_ms, gaps_ms = [], [], []
    Asked(service, filler[:SHORT_TOKENS], 2).finished()
    long = None if long_prompt is None else Asked(service, long_prompt, 2)
    began_s, number = time.perf_counter(), 0
    while time.perf_counter() - began_s < window_s or number < 2:
        if long is not None and long.piece_s:
            break
        number += 1
        start = number * 7 % (len(filler) - SHORT_TOKENS)
        asked = Asked(service, filler[start : start + SHORT_TOKENS], SHORT_REPLY)
        finished, ms = asked.finished()
        took_ms.append(ms)
        ttft_ms.append(finished.ttft_ms)
        gaps_ms += [(b - a) * 1e3 for a, b in pairwise(asked.piece_s)]
        if long is None and number >= 40:
            break
    whole = long is not None and bool(long.piece_s)
    if long is not None:
        long.generation.cancel()
    out = {"requests": number, "ms": spread(took_ms), "ttft_ms": spread(ttft_ms), "between_tokens_ms": spread(gaps_ms)}
    if long is not None:
        out["long_prompt_s"] = long.piece_s[0] - long.began_s if whole else None
    return out


def equality(subject: Subject, tokens: int) -> list[dict[str, Any]]:
    """Each question's first difference between together and alone, with the logits of both tokens."""
    lm, rows = subject.lm, []
    prompts = [lm.tokenizer.encode(FILLER + question) for question in QUESTIONS]
    with subject.entered():
        alone = [_greedy(lm, prompt, tokens) for prompt in prompts]
        batch = lm.open_batch()
        sessions = [batch.open() for _ in prompts[: batch.width]]
        out: list[list[int]] = []
        for session, prompt in zip(sessions, prompts, strict=False):
            session.set_tokens(prompt)
            out.append([batch.head.best(session.last_hidden)])
            session.extend(out[-1])
        for _ in range(tokens - 1):
            hidden = batch.step(sessions)
            for session, made, token in zip(
                sessions, out, batch.head.best_each(hidden, [None] * len(sessions)), strict=True
            ):
                made.append(token)
                session.extend([token])
        batch.close()
        for question, prompt, ours, theirs in zip(QUESTIONS, prompts, out, alone, strict=False):
            pairs = enumerate(zip(ours, theirs, strict=False))
            place = next((index for index, (a, b) in pairs if a != b), None)
            row: dict[str, Any] = {
                "question": question,
                "tokens": min(len(ours), len(theirs)),
                "first_difference": place,
            }
            if place is not None:
                judge = lm.open_session()
                judge.set_tokens([*prompt, *theirs[:place]])
                logits = lm.head.logits(judge.hidden())[0]
                row["logits"] = [float(logits[ours[place]]), float(logits[theirs[place]])]
                judge.close()
            rows.append(row)
    return rows


def _greedy(lm: CausalLM, prompt: Sequence[int], tokens: int) -> list[int]:
    session = lm.open_session()
    session.set_tokens(prompt)
    out = list(session.generate(max_new_tokens=tokens))
    session.close()
    return out


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and P99."""
    return {"p50": statistics.median(values), "p99": quantile(values, 0.99)} if values else {"p50": 0.0, "p99": 0.0}


@contextmanager
def loaded(profile: str, context_tokens: int, random: Path | None, *, with_kernels: bool) -> Iterator[Subject]:
    """The model of a profile on its device, warm. with_kernels: on a GPU, single tokens as the product decodes them."""
    store = Store.open()
    kernels = store.root if with_kernels else None
    if profile == "cpu":
        lm = CausalLM.load(store.ensure("qwen2.5-coder-0.5b-instruct"), context_tokens=context_tokens, batch=8)
        lm.warm_up()
        yield Subject(lm, "cpu", nullcontext)
        return
    with opened("cuda" if profile == "h200" else "cpu", threads=2, kernels=kernels) as bench:
        lane = bench.lanes[0]
        folder = _random_folder(random) if random is not None else store.built(bench.models["llm"])
        device = bench.extra.get("cuda")
        entered = (lambda: device.enter(lane)) if device is not None else nullcontext
        with entered():
            lm = CausalLM.load(
                folder, placements={lane: bench.placement(lane)}, context_tokens=context_tokens, slots=2, batch=8
            )
            lm.warm_up(longest_chunk=512)
        yield Subject(lm, "cuda" if device is not None else "cpu", entered)


def _random_folder(tokenizer: Path) -> Path:
    from benchmarks.harness.random_checkpoint import build_random

    return build_random(tokenizer)


def table(out: dict[str, Any]) -> str:
    lines = [f"decoder: {out['decoder']}", "texts in a run   ms   tokens/s   ratio"]
    lines += [f"{r['batch']:14}{r['step_ms']:8.2f}{r['tokens_s']:9.1f}{r['ratio']:8.2f}" for r in out["steps"]]
    if "served" in out:
        s = out["served"]
        lines.append(
            f"8 requests: {s['alone_tokens_s']:.1f} tokens/s one after the other, {s['together_tokens_s']:.1f} "
            f"together, ratio {s['ratio']:.2f}"
        )
    if "beside" in out:
        b = out["beside"]
        lines.append(
            f"short requests beside a prompt of {b['long_tokens']} tokens: P50 / P99 ms, first token P99, gap P99"
        )
        for name in ("alone", "chunked", "whole"):
            row = b[name]
            if "error" in row:
                lines.append(f"  {name:8} {row['error']}")
                continue
            lines.append(
                f"  {name:8} {row['requests']:4} requests {row['ms']['p50']:9.1f} / {row['ms']['p99']:9.1f}"
                f"{row['ttft_ms']['p99']:10.1f}{row['between_tokens_ms']['p99']:10.1f}"
            )
    if "equal" in out:
        same = sum(row["first_difference"] is None for row in out["equal"])
        lines.append(f"equal to batch 1: {same} of {len(out['equal'])}")
        lines += [
            f"  {row['question']} token {row['first_difference']}: {row['logits'][0]:.3f}, {row['logits'][1]:.3f}"
            for row in out["equal"]
            if row["first_difference"] is not None
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--profile", choices=("cpu", "h200", "stand-in"), default="cpu")
    parser.add_argument("--long", type=int, default=16_384, help="tokens of the long prompt (16384)")
    parser.add_argument("--window-s", type=float, default=60.0, help="longest time beside the long prompt (60)")
    parser.add_argument("--only", default="steps,equal,served,beside", help="parts, comma-separated")
    parser.add_argument("--out", type=Path, help="write results here as they come")
    parser.add_argument(
        "--decoder",
        choices=("kernels", "onnxruntime"),
        default="kernels",
        help="what makes single tokens on a GPU; by default what serves",
    )
    parser.add_argument("--random", type=Path, help="folder with a tokenizer.json; weights are random")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    context = max(1024, options.long + 256 if "beside" in parts else 0)
    out: dict[str, Any] = {"profile": options.profile, "context_tokens": context}
    with loaded(options.profile, context, options.random, with_kernels=options.decoder == "kernels") as subject:
        out["decoder"] = subject.lm.decoder
        work: dict[str, Callable[[], Any]] = {
            "steps": lambda: steps(subject, SIZES, 20 if subject.device == "cpu" else 200),
            "equal": lambda: equality(subject, 32),
            "served": lambda: served(subject),
            "beside": lambda: beside(subject, options.long, options.window_s),
        }
        for name in parts:
            out[name] = work[name]()
            if options.out is not None:
                options.out.write_text(json.dumps(out), encoding="utf-8")
    print(json.dumps(out) if options.json else table({"steps": [], **out}))
    return 0
