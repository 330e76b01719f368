"""Prefill and decode speed beside llama.cpp on the same GGUF, with the quality of both against the f32 export.

    python -m benchmarks decode [--models qwen,smollm2,gemma3] [--json]

Runs of the two engines alternate; figures are medians, so that what else the machine does hits both alike.
When the peer is not installed, dies or hangs, the result says so; its figures and the ratios are null.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import command_line
from benchmarks.harness.timing import tokens_per_s
from benchmarks.peers.llama import LlamaSpeed
from benchmarks.peers.process import Peer, PeerProcess
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
        return tokens_per_s(stream, start, len(prompt) - 1, DECODE_TOKENS)

    def logits(self, tokens: list[int]) -> F32:
        hidden = self.session.hidden_rows(tokens)
        return self.lm.head.logits(hidden)


@dataclass(frozen=True, slots=True)
class PeerRow:
    """The peer's results for one model."""

    decode_tok_s: float
    prefill_tok_s: float
    agreement: float
    kl: float


@dataclass(frozen=True, slots=True)
class Row:
    """One model's results. Ratios are ours over llama.cpp's; agreement is of the arg-max with the f32 export's.

    peer_failed: why the peer has no figures; all of its figures and the ratios are then None.
    """

    decode_ratio: float | None
    prefill_ratio: float | None
    agreement: float
    peer_agreement: float | None
    decode_tok_s: float
    peer_decode_tok_s: float | None
    prefill_tok_s: float
    peer_prefill_tok_s: float | None
    kl: float
    peer_kl: float | None
    quality_tokens: int
    peer_failed: str | None = None


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


def measure(built: Path, full: Path, peer: PeerProcess) -> Row:
    """One model, all figures. The peer's process is started and ended here."""
    ours = Ours(CausalLM.load(built, threads=THREADS, context_tokens=CONTEXT_TOKENS))
    text = ours.lm.tokenizer.encode(TEXT, add_special=True)
    prompt = text[:PROMPT_TOKENS]
    speeds: list[tuple[float, float]] = []
    peer_speeds: list[tuple[float, float]] = []
    try:
        for _ in range(REPEATS + 1):
            speeds.append(ours.speed(prompt))
            peer_speeds.append(peer.attempt("speed", prompt))
        peer_logits: F32 | None = peer.attempt("logits", text)
    finally:
        peer.close()
    prefill, decode = medians(speeds)
    reference = Ours(CausalLM.load(full, threads=THREADS, context_tokens=CONTEXT_TOKENS)).logits(text)
    gc.collect()
    agreement, kl = compare(reference, ours.logits(text))
    theirs = None
    if peer_logits is not None:
        peer_prefill, peer_decode = medians(peer_speeds)
        theirs = PeerRow(peer_decode, peer_prefill, *compare(reference, peer_logits))
    return Row(
        decode_ratio=decode / theirs.decode_tok_s if theirs else None,
        prefill_ratio=prefill / theirs.prefill_tok_s if theirs else None,
        agreement=agreement,
        peer_agreement=theirs.agreement if theirs else None,
        decode_tok_s=decode,
        peer_decode_tok_s=theirs.decode_tok_s if theirs else None,
        prefill_tok_s=prefill,
        peer_prefill_tok_s=theirs.prefill_tok_s if theirs else None,
        kl=kl,
        peer_kl=theirs.kl if theirs else None,
        quality_tokens=len(text),
        peer_failed=peer.failure,
    )


def medians(speeds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(prefill, decode) without the first run, which warms up."""
    prefill, decode = zip(*speeds[1:], strict=True)
    return statistics.median(prefill), statistics.median(decode)


def table(rows: dict[str, Row]) -> str:
    """The results for people."""
    lines = [
        f"{'model':9}{'decode tok/s':>22}{'prefill tok/s':>24}{'agreement':>20}{'KL (nats)':>22}",
        f"{'':9}{'ours / llama.cpp':>22}{'ours / llama.cpp':>24}{'ours / llama':>20}{'ours / llama':>22}",
    ]
    for name, r in rows.items():
        decode = f"{r.decode_tok_s:.0f} / {_or_dash(r.peer_decode_tok_s, '.0f')} = {_or_dash(r.decode_ratio, '.2f')}x"
        prefill = (
            f"{r.prefill_tok_s:.0f} / {_or_dash(r.peer_prefill_tok_s, '.0f')} = {_or_dash(r.prefill_ratio, '.2f')}x"
        )
        agreement = f"{r.agreement:.2%} / {_or_dash(r.peer_agreement, '.2%')}"
        kl = f"{r.kl:.4f} / {_or_dash(r.peer_kl, '.4f')}"
        lines.append(f"{name:9}{decode:>22}{prefill:>24}{agreement:>20}{kl:>22}")
    lines += [f"{name}: no figures of the peer: {r.peer_failed}" for name, r in rows.items() if r.peer_failed]
    return "\n".join(lines)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--models", default="qwen,smollm2,gemma3", help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--model-dir", type=Path, help="a served build to measure instead of the store's (one model)")
    parser.add_argument("--f32-dir", type=Path, help="the full-precision build to compare with instead of the store's")
    parser.add_argument("--gguf", type=Path, help="the GGUF file instead of the store's (one model)")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    if unknown := set(names) - set(MODELS):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    if (options.model_dir or options.gguf or options.f32_dir) and len(names) != 1:
        parser.error("--model-dir, --f32-dir and --gguf go with exactly one --models name")
    store = Store.open()
    rows = {}
    for name in names:
        entry, source = MODELS[name]
        gguf = options.gguf or store.source(entry, source)
        rows[name] = measure(
            options.model_dir or store.ensure(entry),
            options.f32_dir or store.ensure(entry + "-f32"),
            PeerProcess(Peer.LLAMA_CPP, LlamaSpeed, gguf, THREADS, CONTEXT_TOKENS, DECODE_TOKENS),
        )
    if options.json:
        print(json.dumps({"models": {name: asdict(row) for name, row in rows.items()}, "threads": THREADS}))
    else:
        print(table(rows))
    return 0
