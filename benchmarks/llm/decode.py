"""Prefill and decode speed beside llama.cpp on the same GGUF, with the quality of both against the f32 export.

    python benchmarks/llm/decode.py [--models qwen,smollm2,gemma3] [--json]

Runs of the two engines alternate; figures are medians, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store

F32 = NDArray[np.float32]

MODELS = {
    "qwen": ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    "smollm2": ("smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": ("gemma-3-270m", "gemma-3-270m-q4_k_m.gguf"),
}
"""Short name -> (name in the registry, its source file)."""
PROMPT_TOKENS = 256
DECODE_TOKENS = 48
REPEATS = 7
THREADS = 2
CONTEXT_TOKENS = 1024
TEXT = (
    "The driver asked for a warmer cabin before the motorway, so the assistant set the left side to twenty-three"
    " degrees and left the passenger's side alone. A few minutes later rain began. The wipers started on their"
    " own, the rear window cleared, and a calm voice read the next turn: keep right at the fork, then follow"
    " the signs to the airport for eleven kilometres. Nobody had to look at the screen. What makes such a"
    " system trustworthy is not that it never errs, but that it says plainly what it did, refuses what would"
    " be unsafe, and lets a person take the last word. In Python one might write:\n\ndef clamp(value: float,"
    " low: float, high: float) -> float:\n    return max(low, min(value, high))\n\n早上七点,小李坐进车里,"
    "说了一句“打开座椅加热”。仪表盘亮了一下,车里的语音助手回答说已经打开,并把温度读了出来。路上开始下雪,"
    "前挡风玻璃慢慢起雾,他又说“前面看不清了”,空调马上切换到除霜模式。到了十字路口,导航提示向左转,前方两公"
    "里有事故,预计晚到十五分钟。他问附近有没有充电站,助手给出了三个地点,其中最近的一个在体育馆旁边。好的"
    '设计并不是让人惊讶,而是让人放心:听得清楚,做得准确,说得明白;做不到的时候,也要直接告诉他原因。\n\n{"tool'
    '": "set_temperature", "arguments": {"zone": "driver", "celsius": 22.5}}\nThe following year'
    " the team measured everything again. Latency at the ninety-ninth percentile had fallen by a third, mostly"
    " because memory was no longer allocated while a request was running. 他们把结果写进报告,附上了每一次"
    "测量的命令和日期。"
)


class Engine(Protocol):
    """One engine under test."""

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        """(prefill, decode) in tokens per second."""
        ...

    def logits(self, tokens: list[int]) -> F32:
        """Logits after every token, (n, vocab)."""
        ...


class Ours:
    """Cockpit's engine."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm
        self.session = lm.open_session()

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        """One token more than the prompt is decoded unmeasured: choosing the first token belongs to prefill."""
        self.session.set_tokens(prompt[:1])
        start = time.perf_counter()
        self.session.set_tokens(prompt)
        stream = self.session.generate(max_new_tokens=DECODE_TOKENS)
        return clocked(stream, start, len(prompt) - 1)

    def logits(self, tokens: list[int]) -> F32:
        hidden = self.session.hidden_rows(tokens)
        return self.lm.head.logits(hidden)


class LlamaCpp:
    """llama.cpp through llama-cpp-python, as its documentation shows it."""

    def __init__(self, module: Any, gguf: Path) -> None:
        self.module = module
        self.gguf = gguf
        self.model = self._load(logits_all=False)

    def _load(self, *, logits_all: bool) -> Any:
        return self.module.Llama(
            str(self.gguf),
            n_ctx=CONTEXT_TOKENS,
            n_batch=512,
            n_threads=THREADS,
            n_threads_batch=THREADS,
            logits_all=logits_all,
            verbose=False,
        )

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        self.model.reset()
        start = time.perf_counter()
        stream = self.model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0, reset=True)
        return clocked(stream, start, len(prompt))

    def logits(self, tokens: list[int]) -> F32:
        model = self._load(logits_all=True)
        model.eval(tokens)
        logits = np.array(model.scores[: len(tokens)], np.float32)
        model.close()
        return logits


def clocked(stream: Any, start: float, prompt_tokens: int) -> tuple[float, float]:
    """(prefill, decode) tokens per second of a token stream whose first token closes prefill."""
    next(stream)
    first = time.perf_counter()
    count = 0
    for count, _ in enumerate(stream, start=1):
        if count == DECODE_TOKENS - 1:
            break
    end = time.perf_counter()
    return prompt_tokens / (first - start), count / (end - first)


@dataclass(frozen=True, slots=True)
class Row:
    """One model's results. Ratios are ours over llama.cpp's; agreement is of the arg-max with the f32 export's."""

    decode_ratio: float
    prefill_ratio: float
    agreement: float
    peer_agreement: float
    decode_tok_s: float
    peer_decode_tok_s: float
    prefill_tok_s: float
    peer_prefill_tok_s: float
    kl: float
    peer_kl: float
    quality_tokens: int


def compare(reference: F32, other: F32) -> tuple[float, float]:
    """(share of positions with the same arg-max, mean KL divergence in nats) of `other` against `reference`."""
    width = min(reference.shape[1], other.shape[1])
    same, total = 0, 0.0
    for row, peer in zip(reference[:, :width], other[:, :width], strict=True):
        same += int(row.argmax() == peer.argmax())
        p, q = log_softmax(row), log_softmax(peer)
        total += float((np.exp(p) * (p - q)).sum())
    return same / len(reference), total / len(reference)


def log_softmax(row: F32) -> NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def measure(built: Path, full: Path, gguf: Path, llama: Any) -> Row:
    """One model, all figures."""
    ours = Ours(CausalLM.load(built, threads=THREADS, context_tokens=CONTEXT_TOKENS))
    peer = LlamaCpp(llama, gguf)
    text = ours.lm.tokenizer.encode(TEXT, add_special=True)
    prompt = text[:PROMPT_TOKENS]
    engines: tuple[Engine, Engine] = (ours, peer)
    speeds: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for _ in range(REPEATS + 1):
        for engine, runs in zip(engines, speeds, strict=True):
            runs.append(engine.speed(prompt))
    medians = [[statistics.median(column) for column in zip(*runs[1:], strict=True)] for runs in speeds]
    (prefill, decode), (peer_prefill, peer_decode) = medians
    reference = Ours(CausalLM.load(full, threads=THREADS, context_tokens=CONTEXT_TOKENS)).logits(text)
    gc.collect()
    agreement, kl = compare(reference, ours.logits(text))
    peer_agreement, peer_kl = compare(reference, peer.logits(text))
    return Row(
        decode_ratio=decode / peer_decode,
        prefill_ratio=prefill / peer_prefill,
        agreement=agreement,
        peer_agreement=peer_agreement,
        decode_tok_s=decode,
        peer_decode_tok_s=peer_decode,
        prefill_tok_s=prefill,
        peer_prefill_tok_s=peer_prefill,
        kl=kl,
        peer_kl=peer_kl,
        quality_tokens=len(text),
    )


def table(rows: dict[str, Row]) -> str:
    """The results for people."""
    head = f"{'model':9}{'decode tok/s':>22}{'prefill tok/s':>24}{'agreement':>20}{'KL (nats)':>22}\n"
    head += (
        f"{'':9}"
        + f"{'ours / llama.cpp':>22}"
        + f"{'ours / llama.cpp':>24}"
        + f"{'ours / llama':>20}{'ours / llama':>22}"
    )
    lines = [head]
    for name, r in rows.items():
        lines.append(
            f"{name:9}"
            f"{f'{r.decode_tok_s:.0f} / {r.peer_decode_tok_s:.0f} = {r.decode_ratio:.2f}x':>22}"
            f"{f'{r.prefill_tok_s:.0f} / {r.peer_prefill_tok_s:.0f} = {r.prefill_ratio:.2f}x':>24}"
            f"{f'{r.agreement:.2%} / {r.peer_agreement:.2%}':>20}"
            f"{f'{r.kl:.4f} / {r.peer_kl:.4f}':>22}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen,smollm2,gemma3", help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model-dir", type=Path, help="a served build to measure instead of the store's (one model)")
    parser.add_argument("--f32-dir", type=Path, help="the full-precision build to compare with instead of the store's")
    parser.add_argument("--gguf", type=Path, help="the GGUF file instead of the store's (one model)")
    args = parser.parse_args()
    names = args.models.split(",")
    if unknown := set(names) - set(MODELS):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    if (args.model_dir or args.gguf or args.f32_dir) and len(names) != 1:
        parser.error("--model-dir, --f32-dir and --gguf go with exactly one --models name")
    try:
        llama = importlib.import_module("llama_cpp")
    except ImportError:
        print("llama-cpp-python is not installed: pip install -e '.[bench]'", file=sys.stderr)
        return 3
    rows = {}
    for name in names:
        entry, source = MODELS[name]
        rows[name] = measure(
            args.model_dir or Store.open().ensure(entry),
            args.f32_dir or Store.open().ensure(entry + "-f32"),
            args.gguf or Store.open().source(entry, source),
            llama,
        )
    if args.json:
        print(json.dumps({"models": {name: asdict(row) for name, row in rows.items()}, "threads": THREADS}))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
