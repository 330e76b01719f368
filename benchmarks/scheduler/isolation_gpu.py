"""The GPU cases of the isolation benchmark: one 4B-shaped fp16 model, shared by navigation and a dialogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gemma.gemm import open_gemm
from benchmarks.gemma.session import (
    TUNED,
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeWeights,
    build_decode_kernels,
)
from benchmarks.harness.gpu import lane_library, open_lanes, timed
from benchmarks.harness.random_model import fill_cache, random_model, view
from benchmarks.harness.report import gpu_driver
from benchmarks.scheduler.contention import Case, CaseSet
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.gate import DeviceGate, open_gate

BURST_TOKENS = 8
CONTEXT = 1024
PROMPT_TOKENS = 2048
ANSWER_TOKENS = 64
LAYERS = DecodeShape().layers


@dataclass(frozen=True)
class GpuStream:
    """A stream, of a lane or of the whole device, and how many SMs its work may fill."""

    name: str
    handle: int
    sms: int


@dataclass
class GraphLoad:
    """Replays graphs in turn, one running and one queued: what is queued stops at the gates inside it.

    plan: (graph, ms it is worth); rewind: called when the plan starts over.
    """

    driver: BoundDriver
    stream: int
    plan: Sequence[tuple[Any, float]]
    gate: DeviceGate | None
    rewind: Callable[[], None] = lambda: None
    index: int = 0

    def begin(self) -> None:
        self.events = [self.driver.event(), self.driver.event()]
        self.queued: float | None = None
        self.index = 0

    def step(self) -> float:
        if self.gate is not None and self.gate.closed:
            self.gate.wait(1.0)
        at = self.index % len(self.plan)
        if at == 0:
            self.rewind()
        graph, worth = self.plan[at]
        self.driver.replay(graph, self.stream)
        self.driver.record(self.events[self.index % 2], self.stream)
        self.index += 1
        finished = 0.0
        if self.queued is not None:
            self.driver.wait_event(self.events[self.index % 2])
            finished = self.queued
        self.queued = worth
        return finished

    def end(self) -> None:
        self.driver.synchronise(self.stream)


@dataclass
class DecoderBench:
    """Everything the cases share."""

    driver: BoundDriver
    whole_sms: int
    kernels: DecodeKernels
    weights: DecodeWeights
    gate: DeviceGate
    read: Any
    scratch: int
    worth: dict[str, float] = field(default_factory=dict)
    """ms of each kind of unit on the whole GPU: the common measure of what a load got done."""

    def session(self, stream: GpuStream, gate: DeviceGate | None = None, boundary: int = 0) -> DecodeSession:
        session = DecodeSession(
            self.driver, self.kernels, self.weights, stream.handle, stream.sms, 1536, gate, boundary
        ).open()
        fill_cache(session, 11)
        return session

    def navigation(self, session: DecodeSession) -> tuple[Callable[[], None], Callable[[], None]]:
        def navigate() -> None:
            for _ in range(BURST_TOKENS):
                session.replay()
            self.driver.synchronise(session.stream)

        return navigate, lambda: session.seek(3, CONTEXT)

    def prefill(self, stream: GpuStream, chunk: int, gate: DeviceGate | None, boundary: int) -> Any:
        """One chunk's matrix products over every layer (norms and attention left out), a gate each `boundary`."""
        shape, scratch = self.weights.shape, self.scratch
        gemm = open_gemm(self.driver, stream.handle, stream.sms, self.whole_sms)
        wide = scratch + (64 << 20)

        def work() -> None:
            for index, layer in enumerate(self.weights.layers):
                if gate and boundary and index % boundary == 0:
                    gate.launch(stream.handle)
                for matrix, columns, inner in (
                    (layer.qkv, shape.qkv_rows, shape.hidden),
                    (layer.o, shape.hidden, shape.attention_width),
                    (layer.gate_up, 2 * shape.ffn, shape.hidden),
                    (layer.down, shape.hidden, shape.ffn),
                ):
                    gemm.multiply(scratch, matrix.weights, wide, chunk, columns, inner)

        work()
        self.driver.synchronise(stream.handle)
        return self.driver.capture(stream.handle, work)

    def dialogue(
        self, stream: GpuStream, yields: bool, chunk: int = 256, decode_every: int = 3, prefill_every: int = 2
    ) -> GraphLoad:
        """A turn over and over: a prompt of 2048 tokens in chunks, then 64 tokens of answer. chunk 0: answers only."""
        gate = self.gate if yields else None
        session = self.session(stream, gate, decode_every if yields else 0)
        plan: list[tuple[Any, float]] = []
        session.seek(3, CONTEXT)
        token = self._worth("token", stream, session.graph)
        if chunk:
            graph = self.prefill(stream, chunk, gate, prefill_every if yields else 0)
            plan += [(graph, self._worth("prompt", stream, graph, chunk))] * (PROMPT_TOKENS // chunk)
        plan += [(session.graph, token)] * ANSWER_TOKENS
        return GraphLoad(self.driver, stream.handle, plan, gate, lambda: session.seek(3, CONTEXT))

    def matrix(self, stream: GpuStream, yields: bool) -> GraphLoad:
        """Square fp16 products of 4096, eight a graph."""
        gemm = open_gemm(self.driver, stream.handle, stream.sms, self.whole_sms)
        a, b, c = (self.scratch + i * (64 << 20) for i in range(3))
        return self._repeat("matrix", stream, yields, lambda: gemm.multiply(a, b, c, 4096, 4096, 4096))

    def bandwidth(self, stream: GpuStream, yields: bool) -> GraphLoad:
        """Reading 1 GB of weights, eight times a graph."""
        layer = self.weights.embedding
        words = ((1 << 30) // 16).to_bytes(8, "little")
        arguments = (layer.weights.to_bytes(8, "little"), words, self.scratch.to_bytes(8, "little"))
        grid = (stream.sms * 4, 1, 1)
        return self._repeat(
            "bandwidth", stream, yields, lambda: self.driver.launch(self.read, grid, 512, stream.handle, *arguments)
        )

    def _repeat(self, kind: str, stream: GpuStream, yields: bool, work: Callable[[], None]) -> GraphLoad:
        gate = self.gate if yields else None
        work()

        def eight() -> None:
            for _ in range(8):
                if gate:
                    gate.launch(stream.handle)
                work()

        graph = self.driver.capture(stream.handle, eight)
        return GraphLoad(self.driver, stream.handle, [(graph, self._worth(kind, stream, graph))], gate)

    def _worth(self, kind: str, stream: GpuStream, graph: Any, units: int = 1) -> float:
        """ms of `units` of a kind: measured once, where it first appears (on the whole GPU, without gates)."""
        if kind not in self.worth:
            times = timed(self.driver, stream.handle, lambda: self.driver.replay(graph, stream.handle), 5)
            self.worth[kind] = sorted(times)[2] / units
        return self.worth[kind] * units


def open_bench() -> tuple[DecoderBench, Any]:
    driver = BoundDriver()
    device = open_lanes(driver)
    capability = device.facts.capability
    library = lane_library(driver, device)
    model = random_model(DecodeShape(), "fp16", 1536, 3)
    kernels = build_decode_kernels(driver, capability, DecodeShape(), "fp16", TUNED["fp16"])
    scratch = driver.allocate(256 << 20)
    view(scratch, (128 << 20,), "<f2").normal_()  # products of constants would draw less power than real ones
    torch.cuda.synchronize()
    gate = open_gate(driver, library)
    bench = DecoderBench(
        driver, device.units, kernels, model.weights(), gate, driver.kernel(library, "stream_read"), scratch
    )
    return bench, (device, model)


def clock_mhz() -> float:
    """SM clock now, 0 where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:
        return 0.0


def gpu_cases(quick: bool, loads: Sequence[str]) -> CaseSet:
    bench, (device, model) = open_bench()
    driver = bench.driver
    plain = GpuStream("plain", driver.whole_device_stream(), device.units)
    beside = GpuStream("plain beside", driver.whole_device_stream(), device.units)
    urgent = GpuStream("priority", driver.whole_device_stream(urgent=True), device.units)
    lane = {name: GpuStream(name, lane.stream, lane.units) for name, lane in device.lanes.items()}
    few, few_load = lane["navigation:1"], lane["dialogue:1"]
    wide, wide_load = lane["navigation:2"], lane["dialogue:2"]
    short, long = (20, 40) if quick else (60, 200)
    navigators = {stream.name: bench.navigation(bench.session(stream)) for stream in (plain, urgent, few, wide)}

    def case(name: str, stream: GpuStream, load: Any, load_name: str, yields: bool, samples: int = short) -> Case:
        navigate, prepare = navigators[stream.name]
        return Case(name, navigate, load, load_name, bench.gate if yields else None, samples, prepare, clock_mhz)

    cases = [
        case("navigation alone, whole GPU", plain, None, "-", False, long),
        case(f"navigation alone, lane of {wide.sms} SMs", wide, None, "-", False),
        case(f"navigation alone, lane of {few.sms} SMs", few, None, "-", False),
    ]
    answer = f"overlapping lanes of {wide.sms} SMs, yielding"
    makers: dict[str, Callable[[GpuStream, bool], GraphLoad]] = {
        "dialogue": bench.dialogue,
        "decode": lambda stream, yields: bench.dialogue(stream, yields, chunk=0),
        "matrix": bench.matrix,
        "bandwidth": bench.bandwidth,
    }
    for load_name, make in makers.items():
        if load_name not in loads:
            continue
        free, yielding = make(beside, False), make(wide_load, True)
        cases.append(case("plain streams", plain, free, load_name, False))
        cases.append(case("priority streams", urgent, free, load_name, False))
        cases.append(case(f"navigation green ({few.sms}), load in the primary context", few, free, load_name, False))
        green = make(few_load, False)
        cases.append(case(f"both green ({few.sms} + {few_load.sms})", few, green, load_name, False))
        whole = make(beside, True)
        cases.append(case("yielding, plain streams", plain, whole, load_name, True))
        apart = make(few_load, True)
        cases.append(case(f"both green ({few.sms} + {few_load.sms}), yielding", few, apart, load_name, True))
        cases.append(case(answer, wide, yielding, load_name, True, long if load_name == "dialogue" else short))
    for chunk, decode_every, prefill_every in (
        (512, LAYERS, LAYERS),
        (256, LAYERS, LAYERS),
        (128, LAYERS, LAYERS),
        (512, 12, 6),
        (512, 6, 2),
        (512, 3, 1),
        (256, 3, 1),
        (128, 3, 6),
    ):
        load = bench.dialogue(wide_load, True, chunk, decode_every, prefill_every)
        name = f"{answer}, chunk {chunk}, gate every {decode_every} layers (decode), {prefill_every} (prefill)"
        cases.append(case(name, wide, load, "dialogue", True))
    cases += _with_l2_window(bench, case, wide, few, few_load, wide_load)
    title = f"navigation = {BURST_TOKENS} tokens at context {CONTEXT}, 4B-shaped fp16 model, driver {gpu_driver()}"

    def close() -> None:
        device.close()
        del model.layers[:]

    return CaseSet(device.name, gpu_driver(), title, cases, (answer, "dialogue"), (20.0, 70.0), close)


def _with_l2_window(
    bench: DecoderBench,
    case: Callable[..., Case],
    wide: GpuStream,
    few: GpuStream,
    few_load: GpuStream,
    wide_load: GpuStream,
) -> list[Case]:
    """The same with a persisting L2 window on navigation's keys: last, because the set-aside is the whole device's."""
    cases = []
    for name, stream, load_stream, yields in (
        (f"both green ({few.sms} + {few_load.sms})", few, few_load, False),
        (f"overlapping lanes of {wide.sms} SMs, yielding", wide, wide_load, True),
    ):
        session = bench.session(stream)
        size = 64 << 20
        bench.driver.persist_l2(stream.handle, session.buffers["k"], size)
        session.graph = bench.driver.capture(stream.handle, session.launch_token)
        bench.driver.persist_l2(stream.handle, session.buffers["k"], 0)
        navigate, prepare = bench.navigation(session)
        made = case(
            f"{name}, L2 window on navigation's keys", stream, bench.dialogue(load_stream, yields), "dialogue", yields
        )
        made.navigate, made.prepare = navigate, prepare
        cases.append(made)
    return cases
