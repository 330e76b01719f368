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
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.devices import ON_CPU, model_folder, opened
from benchmarks.harness.report import Report, head, report_options
from benchmarks.llm.gpu_engine_parts import asr, llm, memory, tts
from models.errors import CockpitError
from models.store.store import Store


def measure(report: Report, arguments: argparse.Namespace) -> None:
    store = Store.open()
    where = partial(model_folder, store=store, folder=arguments.models)
    threads = arguments.cpu_threads
    with opened(arguments.device, threads) as bench:
        report.put(bench=bench.name, models=bench.models, cpu_threads=threads)
        references = [name for name in arguments.references.split(",") if name]
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "memory": partial(memory, bench, where, report),
            "asr": partial(asr, bench, where, threads, report, arguments.recordings),
            "tts": partial(tts, bench, where, threads, report, where("espeak-ng")),
            "llm": partial(llm, bench, where, threads, report, references),
        }
        for name, part in parts.items():
            if name not in arguments.only.split(","):
                continue
            if report.over(0.9):
                report.say(f"time is up: {name} is left out")
                continue
            report.attempt(name, part)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="memory,asr,tts,llm")
    parser.add_argument("--recordings", type=int, default=12, help="half English, half Mandarin")
    parser.add_argument("--references", default=ON_CPU["llm"], help="CPU language models to compare with, comma list")
    parser.add_argument("--cpu-threads", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--models", type=Path, help="folder of built models; default: the model store")
    report_options(parser, 145.0)
    arguments = parser.parse_args()
    report = Report(arguments.out, arguments.budget_s)
    report.put(**head())
    try:
        measure(report, arguments)
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values, ensure_ascii=False) if arguments.json else table(report.values))
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


if __name__ == "__main__":
    raise SystemExit(main())
