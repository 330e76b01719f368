"""What listening costs: share of one core in silence and in road noise, and the peak memory of the process.

    python -m benchmarks.idle [--json] [--seconds 20]

Frames go through as fast as they are taken; CPU time is divided by the length of the stream, which equals the share of
one core at real-time pace.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil.noise import RATE_HZ, road_noise
from models.engines.silero import SileroVad
from models.engines.webrtc_gate import WebRtcGate
from models.store import Store
from pipeline.endpoint import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame
from pipeline.turns import Generations, TurnIds
from pipeline.wire import dumps_text

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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_vad(seconds: int) -> dict[str, Any]:
    """Gate, judge and endpointer alone."""
    judge = SileroVad.load(Store.open().built("silero-vad"))
    judge.warm_up()
    result: dict[str, Any] = {}
    for name, samples in streams(seconds).items():
        judge.reset()
        pointer = Endpointer(EndpointConfig(), WebRtcGate.load(), judge, Generations(), TurnIds())
        turns = 0

        def listen(stream: Iterator[AudioFrame], pointer: Endpointer = pointer) -> None:
            nonlocal turns
            turns += sum(len(pointer.push(frame)) for frame in stream)

        share = share_of_core(listen, samples)
        judged = pointer.detector.judged / pointer.detector.windows
        result[name] = {"core_share": share, "judged_share": judged, "false_turns": turns}
    return result


def main() -> None:
    """Print the table or, with --json, one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=int, default=20, help="length of each stream")
    options = parser.parse_args()
    result = {"vad": measure_vad(options.seconds), "peak_memory_mb": peak_memory_mb(), "seconds": options.seconds}
    if options.json:
        print(dumps_text(result))
        return
    print(f"{'stream':20}{'share of one core':>20}{'heard by the judge':>21}{'utterances':>12}")
    for name, row in result["vad"].items():
        print(f"{name:20}{row['core_share']:19.2%} {row['judged_share']:20.0%}{row['false_turns']:12}")
    print(f"peak memory of the process: {result['peak_memory_mb']:.0f} MB")


if __name__ == "__main__":
    main()
