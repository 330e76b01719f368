"""The one way into the benchmarks.

python -m benchmarks                   what there is
python -m benchmarks NAME [OPTIONS]    run one; every one knows --json and --help
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from benchmarks.peers.process import Peer, installed

WHISPER, LLAMA, PIPER = Peer.FASTER_WHISPER, Peer.LLAMA_CPP, Peer.PIPER_TTS
TORCH, GENAI = Peer.TORCH, Peer.ORT_GENAI


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One row of the list. module: below `benchmarks`; its last part is the name. lasts: on the device it is for."""

    module: str
    measures: str
    device: str
    lasts: str
    peers: tuple[Peer, ...] = ()

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]


BENCHMARKS = (
    Benchmark("chain.turn", "end of speech to first reply sample", "CPU", "8 min", (WHISPER, LLAMA, PIPER)),
    Benchmark("chain.gpu_turn", "the same with the models on the GPU, and free questions", "GPU", "3 min"),
    Benchmark("chain.idle", "share of a core while listening, peak memory", "CPU", "2 min"),
    Benchmark("chain.boot", "start of the process to READY, by phase", "CPU", "2 min"),
    Benchmark("chain.kills", "kill -9 at random moments: ready again, nothing half-written", "CPU", "10 min"),
    Benchmark("chain.power_cut", "a build or rollback cut off at every step: old or new, never half", "CPU", "5 min"),
    Benchmark("chain.warmup", "first request after warm-up beside steady state and a cold start", "CPU, GPU", "3 min"),
    Benchmark("chain.guidance", "navigation's prompts: text to first sample beside a dialogue", "CPU", "5 min"),
    Benchmark("chain.panel", "first audio with events and metrics followed, and with nobody watching", "CPU", "7 min"),
    Benchmark("chain.serialise", "bytes at the edges beside json.dumps, and the hop between stages", "CPU", "10 s"),
    Benchmark("llm.decode", "prefill and decode speed, agreement with the f32 export", "CPU", "5 min", (LLAMA,)),
    Benchmark("llm.families", "every model family: speed, memory, difference from transformers", "CPU", "3 min"),
    Benchmark("llm.speculate", "runs of the model that tool calls take: forced tokens, guesses", "CPU", "2 min"),
    Benchmark("llm.prefix", "TTFT with a shared beginning, parked dialogues against computing", "CPU", "5 min"),
    Benchmark("llm.agents", "ten agents at once, accuracy of the agent loop per model", "CPU", "5 min", (LLAMA,)),
    Benchmark("llm.tasks100", "100 in-car tasks through the API, steady and pulsed", "CPU, GPU", "15 min", (LLAMA,)),
    Benchmark("llm.batching", "tokens per second by batch, short requests beside a long prompt", "CPU, GPU", "8 min"),
    Benchmark("llm.kv_gate", "memory, needles, tool choice and agreement with keys and values dropped", "CPU", "9 min"),
    Benchmark("llm.spinning", "threads that spin between operators, on free cores and on shared ones", "CPU", "1 min"),
    Benchmark("llm.gpu_decode", "batch-1 decode of a 4B shape, share of the bandwidth bound", "GPU", "2 min", (TORCH,)),
    Benchmark("llm.gpu_engine", "each engine on the GPU beside the same on the CPU", "GPU", "3 min"),
    Benchmark("llm.gpu_ort", "the decoder of gpu_decode in ONNX Runtime", "GPU", "3 min", (TORCH, GENAI)),
    Benchmark("llm.gpu_rows", "1 to 8 texts at once in the kernels that serve, Qwen 0.5B's shape", "GPU", "1 min"),
    Benchmark("llm.gpu_check", "pass or fail: lanes, gate, decode kernels", "GPU", "1 min", (TORCH,)),
    Benchmark("llm.gpu_checkpoint", "real weights in the decode kernels: text and speed", "GPU", "1 min", (TORCH,)),
    Benchmark("quality.asr", "word error rate and time of the recogniser", "CPU", "3 min", (WHISPER,)),
    Benchmark("quality.tts", "time to first sound and real-time factor of the voices", "CPU", "2 min", (PIPER,)),
    Benchmark("quality.commands", "share of commands that end exactly right, typed and recorded", "CPU", "6 min"),
    Benchmark("quality.commands_regression", "the same for the regression set, by kind", "CPU", "10 s"),
    Benchmark("quality.commands_spoken", "the same for commands spoken by synthetic voices", "CPU", "8 min"),
    Benchmark(
        "quality.audio_front", "commands over a reply and in its echo, with and without the canceller", "CPU", "8 min"
    ),
    Benchmark("quality.commands_free", "the same when the model writes JSON without a grammar", "CPU", "5 min"),
    Benchmark("quality.parser", "sentences to calls by kind: right, wrong, missed, time", "CPU", "1 min"),
    Benchmark("quality.manual", "questions to the owner's manual: right section, needless ones, time", "CPU", "1 min"),
    Benchmark("quality.places", "what a spoken place name finds among 100,000, and how fast", "CPU", "1 min"),
    Benchmark("scheduler.arbiter", "time of one decision, growth over a million", "CPU, GPU", "2 min"),
    Benchmark("scheduler.policy", "the online policy on two simulated machines", "CPU", "3 min"),
    Benchmark(
        "scheduler.policy_served", "the policy in the served process, quiet and beside a neighbour", "CPU", "25 min"
    ),
    Benchmark(
        "scheduler.capacity", "how many dialogue sessions fit, simulated and through the API", "CPU, GPU", "4 min"
    ),
    Benchmark("scheduler.isolation", "navigation beside loads, in lanes and without", "CPU, GPU", "1 min"),
    Benchmark(
        "scheduler.isolation_served", "navigation and guidance beside all else through the API", "CPU, GPU", "5 min"
    ),
    Benchmark("scheduler.isolation_engine", "the same with the language model and the arbiter", "CPU, GPU", "2 min"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """List, or run one. Exit code 2 for a name that does not exist; else what the benchmark returns."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and not words[0].startswith("-"):
        return run(words[0], words[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run, with its own options after it")
    options = parser.parse_args(words)
    if options.name is not None:
        parser.error(f"options of a benchmark come after its name: python -m benchmarks {options.name} ...")
    show(as_json=options.json)
    return 0


def run(name: str, arguments: Sequence[str]) -> int:
    """Run the benchmark of that name with its own arguments."""
    for benchmark in BENCHMARKS:
        if benchmark.name == name:
            return int(importlib.import_module(f"benchmarks.{benchmark.module}").main(arguments))
    near = get_close_matches(name, [benchmark.name for benchmark in BENCHMARKS], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`python -m benchmarks` lists them"
    print(f"there is no benchmark {name!r}: {hint}", file=sys.stderr)
    return 2


def show(*, as_json: bool) -> None:
    """The list, with which peers are installed here."""
    if as_json:
        rows = [
            {
                "name": benchmark.name,
                "measures": benchmark.measures,
                "device": benchmark.device,
                "lasts": benchmark.lasts,
                "peers": {peer.package: installed(peer) for peer in benchmark.peers},
            }
            for benchmark in BENCHMARKS
        ]
        print(json.dumps(rows))
        return
    print(f"{'name':18}{'device':10}{'lasts':8}what it measures")
    for benchmark in BENCHMARKS:
        print(f"{benchmark.name:18}{benchmark.device:10}{benchmark.lasts:8}{benchmark.measures}")
        if benchmark.peers:
            peers = (
                f"{peer.package} ({'installed' if installed(peer) else 'NOT installed'})" for peer in benchmark.peers
            )
            print(f"{'':36}beside {', '.join(peers)}")
    print("\nA peer that is not installed has no figures; pip install -e '.[bench]' installs those of the CPU.")


if __name__ == "__main__":
    raise SystemExit(main())
