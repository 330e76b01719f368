"""What listening costs: share of one core in silence and in road noise, and the peak memory of the process.

    python -m benchmarks idle [--json] [--seconds 20]

`vad`: gate, VAD model and endpointer alone; frames go through as fast as they are taken and CPU time is divided by the
length of the stream. `runtime`: the whole process as the car runs it, every model loaded and warm, every stage's thread
waiting, frames at real-time pace, so that whatever wakes up in between is counted too. Peak memory: the whole process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import command_line
from cockpit.assemble import assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink, Runtime
from hil.acoustics.noise import RATE_HZ, road_noise
from models.engines.vad.silero import SileroVad
from models.engines.vad.webrtc_gate import WebRtcGate
from models.store.store import Store
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame
from pipeline.json_codec import dumps_text
from pipeline.turns import Generations, TurnIds

FRAME_SAMPLES = 512
NS_PER_SAMPLE = 62_500
ROAD_LEVELS = {"road_noise_quiet": 0.01, "road_noise_loud": 0.08}
"""RMS of full scale: a town street and a motorway as a microphone with gain hears them."""


def streams(seconds: int) -> dict[str, NDArray[np.float32]]:
    """What is listened to, by name: float32 at 16 kHz."""
    size = seconds * RATE_HZ
    hiss = np.random.default_rng(1).normal(0.0, 0.0005, size).astype(np.float32)
    sounds = {"digital_silence": np.zeros(size, np.float32), "silence": hiss}
    for name, level in ROAD_LEVELS.items():
        sounds[name] = np.clip(road_noise(size, 2) * level, -1.0, 1.0).astype(np.float32)
    return sounds


def frames(samples: NDArray[np.float32]) -> Iterator[AudioFrame]:
    """Cut a stream into frames; the times are those of real-time pace."""
    for first in range(0, len(samples), FRAME_SAMPLES):
        part = samples[first : first + FRAME_SAMPLES]
        end = first + len(part)
        yield AudioFrame(part, first, end * NS_PER_SAMPLE, end_of_stream=end == len(samples))


def share_of_core(listen: Callable[[Iterator[AudioFrame]], None], samples: NDArray[np.float32]) -> float:
    """CPU time of the whole process per second of stream."""
    start_s = time.process_time()
    listen(frames(samples))
    return (time.process_time() - start_s) / (len(samples) / RATE_HZ)


def peak_memory_mb() -> float:
    """Most resident memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure_vad(seconds: int) -> dict[str, Any]:
    """Gate, VAD model and endpointer alone."""
    vad_model = SileroVad.load(Store.open().built("silero-vad"))
    vad_model.warm_up()
    result: dict[str, Any] = {}
    for name, samples in streams(seconds).items():
        vad_model.reset()
        pointer = Endpointer(EndpointConfig(), WebRtcGate.load(), vad_model, Generations(), TurnIds())
        turns = 0

        def listen(stream: Iterator[AudioFrame], pointer: Endpointer = pointer) -> None:
            nonlocal turns
            turns += sum(len(pointer.push(frame)) for frame in stream)

        share = share_of_core(listen, samples)
        model_share = pointer.detector.model_runs / pointer.detector.windows
        result[name] = {"core_share": share, "model_share": model_share, "false_turns": turns}
    return result


def measure_runtime(profile: str, seconds: int) -> dict[str, Any]:
    """The whole process, idle. `core_share`: CPU time of all its threads per second."""
    assembly = assemble(load_profile(profile).profile, Store.open(), NullSink())
    runtime = Runtime(assembly.parts)
    runtime.start()
    result: dict[str, Any] = {"loaded_mb": resident_mb()}
    for name, samples in streams(seconds).items():
        time.sleep(0.5)
        closed = len(runtime.turn_log.closed())
        share = share_of_core(lambda stream: runtime.listen(at_pace(stream)), samples)
        result[name] = {"core_share": share, "false_turns": len(runtime.turn_log.closed()) - closed}
    runtime.stop()
    assembly.close()
    return result


def at_pace(stream: Iterator[AudioFrame]) -> Iterator[AudioFrame]:
    """Each frame when its last sample would have been captured."""
    begin_ns = time.monotonic_ns()
    for frame in stream:
        due_ns = begin_ns + frame.captured_ns
        time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        yield replace(frame, captured_ns=due_ns)


def resident_mb() -> float:
    """Memory this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table or, with --json, one object."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--seconds", type=int, default=20, help="length of each stream")
    parser.add_argument("--profile", default="cpu")
    options = parser.parse_args(arguments)
    result = {
        "vad": measure_vad(options.seconds),
        "runtime": measure_runtime(options.profile, options.seconds),
        "seconds": options.seconds,
    }
    result["peak_memory_mb"] = peak_memory_mb()
    if options.json:
        print(dumps_text(result))
        return 0
    print(f"{'stream':18}{'VAD alone':>12}{'whole runtime':>15}{'VAD model a window':>21}{'false turns':>13}")
    for name, row in result["vad"].items():
        whole = result["runtime"][name]
        shares = f"{row['core_share']:12.2%}{whole['core_share']:15.2%}{row['model_share']:21.2f}"
        print(f"{name:18}{shares}{row['false_turns'] + whole['false_turns']:13}")
    print(
        f"(share of one core)   memory of the process: {result['runtime']['loaded_mb']:.0f} MB loaded and warm, ",
        end="",
    )
    print(f"{result['peak_memory_mb']:.0f} MB at its peak")
    return 0
