"""Each engine alone on CUDA through its placement, beside the same engine on this host's CPU, in one run.

    python -m benchmarks gpu_engine [--device cuda|cpu] [--only asr,llm,tts,memory] [--out FILE.json]

Times are medians; ratios below 1 say that the GPU is faster. Correctness: transcripts, greedy tokens (what each model
picks after the other's text, so that one difference counts once) and the voice's waveform without its random noise.
`elsewhere` lists what ONNX Runtime put on the CPU, graph by graph. `memory` shows that a second lane takes no second
copy of the weights. `--device cpu` tries all of it out without a GPU, on the same graphs in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.devices import ON_CPU, Bench, TrackedPlacement, model_folder, opened
from benchmarks.harness.front_end import LANGUAGES
from benchmarks.harness.paths import AUDIO
from benchmarks.harness.playback import chosen_commands
from benchmarks.harness.report import Report, command_line, head, report_options
from models.engines.base import Audio
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.engines.placement import Placement
from models.engines.tts.espeak import EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.engines.whisper.engine import WhisperEngine
from models.errors import CockpitError
from models.store.store import Store
from pipeline.audio.wav import read_wav
from pipeline.nlu.lexicon import hotwords

ROUNDS = 3
PREFILL_TOKENS = (64, 256, 512)
DECODE_TOKENS = 64
GREEDY_TOKENS = 24
CONTEXT_TOKENS = 2048
STILL = {"noise_scale": 0.0, "noise_w": 0.0}
"""A voice without its random numbers says the same samples every time."""
CLAUSES = (
    "The driver temperature is now twenty two degrees.",
    "Turn left in two hundred meters, then keep right.",
    "Your battery is at sixty four percent, which is enough for the way home.",
)
PROMPTS = (
    "Why is the sky blue?",
    "What is the capital of Australia?",
    "Tell me something about dolphins.",
    "How do I stay awake on a long drive?",
    "天空为什么是蓝色的？",
    "澳大利亚的首都是哪里？",
    "给我讲讲海豚。",
    "长途开车怎么保持清醒？",
)
FILLER = "The driver asked for a warmer cabin before the motorway, and it began to rain. "
Where = Callable[[str], Path]


def median_ms(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


# --- speech recognition ----------------------------------------------------------------------------------------------
def asr(bench: Bench, where: Where, threads: int, report: Report, recordings: int) -> dict[str, Any]:
    place = TrackedPlacement(bench.placement(bench.lanes[0]))
    ours = WhisperEngine.load(where(bench.models["asr"]), placement=place)
    theirs = WhisperEngine.load(where(ON_CPU["asr"]), threads=threads)
    words = (*hotwords("en"), *hotwords("zh"))
    for engine in (ours, theirs):
        engine.warm_up()
    rows = []
    for row in chosen_commands(recordings):
        samples = read_wav(AUDIO / row["file"])
        times, texts, tokens = [], [], []
        for engine in (ours, theirs):
            heard = engine.transcribe(samples, languages=LANGUAGES, hotwords=words)
            texts.append(heard.text)
            tokens.append(len(heard.tokens))
            times.append(median_ms(partial(engine.transcribe, samples, languages=LANGUAGES, hotwords=words)))
        encode_ms = median_ms(partial(_encode, ours, samples, bench))
        rows.append(
            {
                "id": row["id"],
                "equal": texts[0] == texts[1],
                "text": texts[0],
                "cpu_text": texts[1],
                "ms": times[0],
                "cpu_ms": times[1],
                "encode_ms": encode_ms,
                "decode_ms_per_token": (times[0] - encode_ms) / (tokens[0] + 3),
                "tokens": tokens[0],
            }
        )
        said = "equal" if texts[0] == texts[1] else f"{texts[0]!r}, cpu {texts[1]!r}"
        report.say(f"asr {row['id']}: {times[0]:.1f} ms, cpu {times[1]:.1f} ms, {said}")
    return {
        "recordings": len(rows),
        "transcripts_equal": sum(row["equal"] for row in rows),
        "ms": _median(rows, "ms"),
        "cpu_ms": _median(rows, "cpu_ms"),
        "ratio": statistics.median(row["ms"] / row["cpu_ms"] for row in rows),
        "encode_ms": _median(rows, "encode_ms"),
        "decode_ms_per_token": _median(rows, "decode_ms_per_token"),
        "elsewhere": place.elsewhere(),
        "rows": rows,
    }


def _encode(engine: WhisperEngine, samples: Audio, bench: Bench) -> None:
    engine._encoder.encode(samples)
    bench.settle()


def _median(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


# --- language model --------------------------------------------------------------------------------------------------
def load_lm(folder: Path, placements: dict[str, Placement]) -> CausalLM:
    """The model on a device, warm, with room for three texts."""
    lm = CausalLM.load(folder, placements=placements, context_tokens=CONTEXT_TOKENS, slots=3)
    lm.warm_up()
    return lm


def llm(bench: Bench, where: Where, threads: int, report: Report, references: Sequence[str]) -> dict[str, Any]:
    lane = bench.lanes[0]
    captured, plain = TrackedPlacement(bench.placement(lane)), TrackedPlacement(bench.placement(lane), capture=False)
    ours = load_lm(where(bench.models["llm"]), {lane: captured})
    out: dict[str, Any] = {"elsewhere": captured.elsewhere(), "captured": _llm_times(ours, report, "captured graph")}
    out["without_graph"] = _llm_times(load_lm(where(bench.models["llm"]), {lane: plain}), report, "no graph")
    for name in references:
        theirs = CausalLM.load(where(name), threads=threads, context_tokens=CONTEXT_TOKENS)
        theirs.warm_up()
        out[f"cpu {name}"] = _llm_times(theirs, report, name) | _agreement(ours, theirs, report, name)
    first = out[f"cpu {references[0]}"] if references else {}
    if first:
        out["decode_ratio"] = out["captured"]["decode_ms_per_token"] / first["decode_ms_per_token"]
        out["ttft_ratio"] = {n: out["captured"]["ttft_ms"][n] / first["ttft_ms"][n] for n in first["ttft_ms"]}
    return out


def _llm_times(lm: CausalLM, report: Report, name: str) -> dict[str, Any]:
    """`ttft_ms`: n tokens of prompt from nothing and the first token. Decode: ms per token at about 512 of context."""
    session = lm.open_session()
    text = lm.tokenizer.encode(FILLER * 60)
    ttft: dict[str, float] = {}
    for count in PREFILL_TOKENS:
        starts = iter(range(1, 100))

        def first(count: int = count, starts: Any = starts) -> None:
            start = next(starts)  # another first token: nothing is reused
            session.set_tokens(text[start : start + count])
            next(session.generate(max_new_tokens=1), None)

        first()
        ttft[str(count)] = median_ms(first, 5)
    times = []
    for start in range(ROUNDS + 1):
        session.set_tokens(text[start : start + PREFILL_TOKENS[-1]])
        steps = session.generate(max_new_tokens=DECODE_TOKENS + 1)
        next(steps, None)
        began = time.perf_counter()
        count = sum(1 for _ in steps)
        times.append((time.perf_counter() - began) * 1e3 / max(1, count))
    session.close()
    result = {"ttft_ms": ttft, "decode_ms_per_token": statistics.median(times[1:]), "decoded": count}
    report.say(f"llm {name}: ttft {ttft}, decode {result['decode_ms_per_token']:.2f} ms/token")
    return result


def _agreement(ours: CausalLM, theirs: CausalLM, report: Report, name: str) -> dict[str, Any]:
    """Share of tokens that both pick after the CPU model's own text, and of whole answers that are equal."""
    mine, other = ours.open_session(), theirs.open_session()
    equal = total = same = 0
    for prompt in PROMPTS:
        text = ours.tokenizer.encode(ours.chat.render([{"role": "user", "content": prompt}]))
        answer = _greedy(other, text, GREEDY_TOKENS)
        same += _greedy(mine, text, GREEDY_TOKENS) == answer
        for index, token in enumerate(answer):
            picked = _greedy(mine, [*text, *answer[:index]], 1)
            equal += picked == [token]
            total += 1
    mine.close()
    other.close()
    report.say(f"llm beside {name}: {equal} of {total} tokens equal, {same} of {len(PROMPTS)} whole answers")
    return {
        "tokens": total,
        "tokens_equal": equal,
        "share_equal": equal / max(1, total),
        "answers_equal": same,
        "answers": len(PROMPTS),
    }


def _greedy(session: LmSession, text: Sequence[int], count: int) -> list[int]:
    session.set_tokens(list(text))
    return list(session.generate(max_new_tokens=count))


# --- voice -----------------------------------------------------------------------------------------------------------
def tts(bench: Bench, where: Where, threads: int, report: Report, espeak: Path) -> dict[str, Any]:
    worker = EspeakWorker.load(espeak)
    try:
        place = TrackedPlacement(bench.placement(bench.lanes[0]))
        ours = PiperVoice.load(where(bench.models["tts"]), placement=place, phonemizer=worker, scales=STILL)
        theirs = PiperVoice.load(where(ON_CPU["tts"]), threads=threads, phonemizer=worker, scales=STILL)
        rows: list[dict[str, Any]] = []
        for text in CLAUSES:
            for voice in (ours, theirs):
                list(voice.synthesise(text))
            wave, wave_cpu = (np.concatenate(list(voice.synthesise(text))) for voice in (ours, theirs))
            size = min(wave.size, wave_cpu.size)
            first, first_cpu = (median_ms(partial(_first_chunk, voice, text), 5) for voice in (ours, theirs))
            whole, whole_cpu = (median_ms(partial(_all_chunks, voice, text)) for voice in (ours, theirs))
            seconds = wave.size / ours.sample_rate_hz
            rows.append(
                {
                    "text": text,
                    "seconds": seconds,
                    "first_chunk_ms": first,
                    "cpu_first_chunk_ms": first_cpu,
                    "real_time_factor": whole / 1e3 / seconds,
                    "cpu_real_time_factor": whole_cpu / 1e3 / seconds,
                    "correlation": float(np.corrcoef(wave[:size], wave_cpu[:size])[0, 1]),
                    "samples": wave.size,
                    "cpu_samples": wave_cpu.size,
                }
            )
            report.say(f"tts: first chunk {first:.1f} ms, cpu {first_cpu:.1f}, r {rows[-1]['correlation']:.5f}")
    finally:
        worker.close()
    keys = ("first_chunk_ms", "cpu_first_chunk_ms", "real_time_factor", "cpu_real_time_factor")
    out: dict[str, Any] = {key: _median(rows, key) for key in keys}
    out["first_chunk_ratio"] = out["first_chunk_ms"] / out["cpu_first_chunk_ms"]
    out["least_correlation"] = min(row["correlation"] for row in rows)
    return out | {"elsewhere": place.elsewhere(), "rows": rows}


def _first_chunk(voice: PiperVoice, text: str) -> None:
    next(voice.synthesise(text))


def _all_chunks(voice: PiperVoice, text: str) -> None:
    for _ in voice.synthesise(text):
        pass


# --- memory ----------------------------------------------------------------------------------------------------------
def memory(bench: Bench, where: Where, report: Report) -> dict[str, Any]:
    """Device memory with the language model in one lane and in two, a session of its own in each."""
    folder = where(bench.models["llm"])
    kept: list[Any] = []
    used = [bench.used_bytes()]
    for count in (1, 2):
        kept.append(load_lm(folder, {lane: TrackedPlacement(bench.placement(lane)) for lane in bench.lanes[:count]}))
        bench.settle()
        used.append(bench.used_bytes())
        report.say(f"memory: {count} lanes: {(used[-1] - used[-2]) / 1e6:.0f} MB")
    one, two = used[1] - used[0], used[2] - used[1]
    weights = (folder / "model.bin").stat().st_size
    return {
        "weights_bytes": weights,
        "one_lane_bytes": one,
        "two_lanes_bytes": two,
        "second_lane_bytes": two - one,
        "second_lane_over_weights": (two - one) / weights,
        "loaded_once": two - one < weights / 2,
    }


# --- the benchmark --------------------------------------------------------------------------------------------------
def measure(report: Report, options: argparse.Namespace) -> None:
    store = Store.open()
    where = partial(model_folder, store=store, folder=options.models)
    threads = options.cpu_threads
    with opened(options.device, threads) as bench:
        report.put(bench=bench.name, models=bench.models, cpu_threads=threads)
        references = [name for name in options.references.split(",") if name]
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "memory": partial(memory, bench, where, report),
            "asr": partial(asr, bench, where, threads, report, options.recordings),
            "tts": partial(tts, bench, where, threads, report, where("espeak-ng")),
            "llm": partial(llm, bench, where, threads, report, references),
        }
        for name, part in parts.items():
            if name not in options.only.split(","):
                continue
            if report.over(0.9):
                report.say(f"time is up: {name} is left out")
                continue
            report.attempt(name, part)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="memory,asr,tts,llm")
    parser.add_argument("--recordings", type=int, default=12, help="half English, half Mandarin")
    parser.add_argument("--references", default=ON_CPU["llm"], help="CPU language models to compare with, comma list")
    parser.add_argument("--cpu-threads", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--models", type=Path, help="folder of built models; default: the model store")
    report_options(parser, 145.0)
    options = parser.parse_args(arguments)
    report = Report(options.out, options.budget_s)
    report.put(**head())
    try:
        measure(report, options)
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values, ensure_ascii=False) if options.json else table(report.values))
    return 1 if report.values.get("failed") else 0


def table(values: dict[str, Any]) -> str:
    lines = [
        f"{values['bench']} ({values['gpu']}) beside {values['cpu_threads']} threads of {values['processor']}, "
        f"{values['date']}, ONNX Runtime {values['onnxruntime']}",
        "| what | GPU | CPU | ratio | equal |",
        "|---|---|---|---|---|",
    ]
    if heard := values.get("asr"):
        equal = f"{heard['transcripts_equal']}/{heard['recordings']} transcripts"
        lines.append(
            f"| ASR, one command, ms | {heard['ms']:.1f} (encode {heard['encode_ms']:.1f}, "
            f"{heard['decode_ms_per_token']:.2f} per token) | {heard['cpu_ms']:.1f} | {heard['ratio']:.3f} | {equal} |"
        )
    if model := values.get("llm"):
        lines += _llm_lines(model)
    if voice := values.get("tts"):
        lines.append(
            f"| TTS, first chunk, ms | {voice['first_chunk_ms']:.1f} | {voice['cpu_first_chunk_ms']:.1f} | "
            f"{voice['first_chunk_ratio']:.3f} | r >= {voice['least_correlation']:.5f} |"
        )
        lines.append(
            f"| TTS, real-time factor | {voice['real_time_factor']:.4f} | {voice['cpu_real_time_factor']:.4f} | | |"
        )
    if kept := values.get("memory"):
        lines.append(
            f"| LLM memory, MB | one lane {kept['one_lane_bytes'] / 1e6:.0f}, two {kept['two_lanes_bytes'] / 1e6:.0f}, "
            f"weights {kept['weights_bytes'] / 1e6:.0f} | | | loaded once: {'yes' if kept['loaded_once'] else 'NO'} |"
        )
    for part in ("asr", "llm", "tts"):
        for graph, nodes in values.get(part, {}).get("elsewhere", {}).items():
            lines.append(f"on the CPU provider, {graph}: {nodes or 'nothing'}")
    return "\n".join(lines + [f"failed: {name}: {why}" for name, why in values.get("failed", {}).items()])


def _llm_lines(model: dict[str, Any]) -> list[str]:
    lines = []
    captured, plain = model["captured"], model["without_graph"]
    for name, cpu in model.items():
        if not name.startswith("cpu "):
            continue
        share = f"{100 * cpu['share_equal']:.1f} % of {cpu['tokens']} tokens"
        ratio = captured["decode_ms_per_token"] / cpu["decode_ms_per_token"]
        lines.append(
            f"| LLM decode, ms/token ({name}) | {captured['decode_ms_per_token']:.2f} (no graph "
            f"{plain['decode_ms_per_token']:.2f}) | {cpu['decode_ms_per_token']:.2f} | {ratio:.3f} | {share} |"
        )
        for count, ms in captured["ttft_ms"].items():
            lines.append(
                f"| LLM first token after {count} ({name}), ms | {ms:.1f} | {cpu['ttft_ms'][count]:.1f} | "
                f"{ms / cpu['ttft_ms'][count]:.3f} | |"
            )
    return lines
