"""The thin layer over the CUDA driver API: every call the house makes, checked, with plain Python types.

`Driver` is the contract that `cockpit.device.cuda.device` needs; tests run it on a fake. `BoundDriver` is the real one
(cuda-bindings). Addresses are ints. Every failed call raises DeviceUnavailable naming the call and CUDA's reason.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from models.errors import DeviceUnavailable, GpuAbsent

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
_PROBE_CYCLES = 200_000
"""About 0.1 ms: long enough for blocks to spread over every multiprocessor of a lane."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the device says of itself. sms: multiprocessors; unit_sms: smallest step of a partition."""

    name: str
    sms: int
    unit_sms: int
    capability: tuple[int, int]
    driver_version: int
    uuid: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A green context: `handle` owns it, `context` is its CUcontext, `sms` what it really holds."""

    handle: Any
    context: Any
    sms: int


class Driver(Protocol):
    """What the CUDA backend asks of the driver. Called from one thread while a device opens or closes."""

    def open(self, ordinal: int) -> DeviceFacts:
        """Initialise the driver and the device. Raises DeviceUnavailable when there is none."""
        ...

    def split(self) -> tuple[list[Any], Any, int]:
        """Split the whole device once. Returns (units of `unit_sms` each, the rest, SMs of the rest)."""
        ...

    def partition(self, resources: Sequence[Any]) -> Partition:
        """Make one green context of several resources of the one split."""
        ...

    def stream(self, partition: Partition, urgent: bool) -> int:
        """A non-blocking stream of the partition."""
        ...

    def enter(self, partition: Partition) -> Any:
        """Context manager: the partition's context is current in the calling thread."""
        ...

    def observe(self, stream: int) -> frozenset[int]:
        """Run the placement kernel on `stream` and return the SM ids it saw."""
        ...

    def synchronise(self, stream: int) -> None: ...

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""
        ...

    def event_sync_us(self, stream: int, samples: int) -> list[float]:
        """Host time of `samples` rounds of event record + synchronise, microseconds."""
        ...

    def destroy(self, partitions: Sequence[Partition], streams: Sequence[int]) -> None: ...


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceUnavailable(
            "device cuda: cuda-bindings is not installed; run: pip install 'cockpit-voice[gpu]'"
        ) from error
    return driver


class BoundDriver:
    """The real driver, through cuda-bindings. One instance per process and device."""

    def __init__(self) -> None:
        self.api: Any = None
        self.device: Any = None
        self.primary: Any = None
        self._mark: Any = None

    def check(self, result: tuple[Any, ...]) -> Any:
        """Strip the status of one driver call; raise DeviceUnavailable when it is not success."""
        status = result[0]
        if int(status) != 0:
            reason = getattr(status, "name", str(status))
            raise DeviceUnavailable(f"CUDA driver call failed with {reason}: see `cockpit doctor`, then `dmesg`")
        return result[1] if len(result) == 2 else result[1:]

    # --- device and partitions ---------------------------------------------------------------------------------------
    def open(self, ordinal: int) -> DeviceFacts:
        # One hardware queue per stream: a parked task must never share its queue with the urgent one.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        d = self.api = _bindings()
        try:
            (status,) = d.cuInit(0)
        except RuntimeError as error:  # cuda-bindings' answer when libcuda.so is not on the machine
            raise DeviceUnavailable(
                f"device cuda: no NVIDIA driver here ({error}); install it or use `device: cpu`"
            ) from error
        if int(status) != 0:
            raise GpuAbsent(f"device cuda: the driver answers {status.name}; use `device: cpu` or mend the driver")
        if ordinal >= self.check(d.cuDeviceGetCount()):
            raise GpuAbsent(f"device cuda: there is no GPU {ordinal}; use `device: cpu` or another ordinal")
        self.device = self.check(d.cuDeviceGet(ordinal))
        # Retained, never run in: green contexts, modules and memory belong to it.
        self.primary = self.check(d.cuDevicePrimaryCtxRetain(self.device))
        self.check(d.cuCtxSetCurrent(self.primary))
        attribute = d.CUdevice_attribute
        major = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        resource = self._sm_resource()
        name = self.check(d.cuDeviceGetName(96, self.device)).split(b"\0")[0].decode()
        return DeviceFacts(
            name,
            int(resource.sm.smCount),
            int(resource.sm.smCoscheduledAlignment),
            (major, minor),
            int(self.check(d.cuDriverGetVersion())),
            bytes(self.check(d.cuDeviceGetUuid(self.device)).bytes).hex(),
            int(self.check(d.cuDeviceTotalMem(self.device))),
        )

    def attribute(self, name: Any) -> int:
        return int(self.check(self.api.cuDeviceGetAttribute(name, self.device)))

    def _sm_resource(self) -> Any:
        kind = self.api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return self.check(self.api.cuDeviceGetDevResource(self.device, kind))

    def split(self) -> tuple[list[Any], Any, int]:
        whole = self._sm_resource()
        unit = int(whole.sm.smCoscheduledAlignment)
        units, count, rest = self.check(
            self.api.cuDevSmResourceSplitByCount(int(whole.sm.smCount) // unit, whole, 0, unit)
        )
        return list(units[: int(count)]), rest, int(rest.sm.smCount)

    def partition(self, resources: Sequence[Any]) -> Partition:
        d = self.api
        descriptor = self.check(d.cuDevResourceGenerateDesc(list(resources), len(resources)))
        flags = d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        handle = self.check(d.cuGreenCtxCreate(descriptor, self.device, flags))
        got = self.check(d.cuGreenCtxGetDevResource(handle, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        return Partition(handle, self.check(d.cuCtxFromGreenCtx(handle)), int(got.sm.smCount))

    def stream(self, partition: Partition, urgent: bool) -> int:
        d = self.api
        least, greatest = self.check(d.cuCtxGetStreamPriorityRange())
        flags = d.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self.check(d.cuGreenCtxStreamCreate(partition.handle, flags, greatest if urgent else least)))

    @contextmanager
    def enter(self, partition: Partition) -> Iterator[None]:
        self.check(self.api.cuCtxPushCurrent(partition.context))
        try:
            yield
        finally:
            self.check(self.api.cuCtxPopCurrent())

    def observe(self, stream: int) -> frozenset[int]:
        if self._mark is None:
            text = (KERNELS / "placement.ptx").read_bytes() + b"\0"
            self._mark = self.kernel(self.library(text), "mark")
        sms = int(self._sm_resource().sm.smCount)
        seen = self.allocate(4 * sms)
        try:
            self.check(self.api.cuMemsetD32Async(seen, 0, sms, stream))
            self.launch(
                self._mark, (4 * sms, 1, 1), 1024, stream, struct.pack("Q", seen), struct.pack("Q", _PROBE_CYCLES)
            )
            marks = self.read(seen, 4 * sms, stream)
        finally:
            self.free(seen)
        return frozenset(i for i, mark in enumerate(struct.unpack(f"{sms}I", marks)) if mark)

    def synchronise(self, stream: int) -> None:
        self.check(self.api.cuStreamSynchronize(stream))

    def memory(self) -> tuple[int, int]:
        with self.current():
            free, total = self.check(self.api.cuMemGetInfo())
        return int(free), int(total)

    def event_sync_us(self, stream: int, samples: int) -> list[float]:
        import time

        with self.current():
            event = self.event()
            out = []
            for _ in range(samples):
                began = time.perf_counter_ns()
                self.record(event, stream)
                self.wait_event(event)
                out.append((time.perf_counter_ns() - began) / 1000)
            self.check(self.api.cuEventDestroy(event))
        return out

    def destroy(self, partitions: Sequence[Partition], streams: Sequence[int]) -> None:
        for stream in streams:
            self.check(self.api.cuStreamDestroy(stream))
        for partition in partitions:
            self.check(self.api.cuGreenCtxDestroy(partition.handle))

    # --- memory, kernels, events, graphs: for the engines that run in lanes ------------------------------------------
    @contextmanager
    def current(self) -> Iterator[None]:
        """The device's memory and modules are reachable in the calling thread; nothing may be launched by default."""
        self.check(self.api.cuCtxPushCurrent(self.primary))
        try:
            yield
        finally:
            self.check(self.api.cuCtxPopCurrent())

    def whole_device_stream(self, urgent: bool = False) -> int:
        """A stream outside every lane: the reference a measurement is compared with, never used by a task."""
        with self.current():
            least, greatest = self.check(self.api.cuCtxGetStreamPriorityRange())
            flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING
            return int(self.check(self.api.cuStreamCreateWithPriority(flags, greatest if urgent else least)))

    def allocate(self, size_bytes: int) -> int:
        with self.current():
            return int(self.check(self.api.cuMemAlloc(size_bytes)))

    def free(self, address: int) -> None:
        with self.current():
            self.check(self.api.cuMemFree(address))

    def write(self, address: int, data: bytes, stream: int) -> None:
        """Copy host bytes to the device and wait for it."""
        self.check(self.api.cuMemcpyHtoDAsync(address, data, len(data), stream))
        self.synchronise(stream)

    def read(self, address: int, size_bytes: int, stream: int) -> bytes:
        out = bytearray(size_bytes)
        self.check(self.api.cuMemcpyDtoHAsync(out, address, size_bytes, stream))
        self.synchronise(stream)
        return bytes(out)

    def zero(self, address: int, size_bytes: int, stream: int) -> None:
        self.check(self.api.cuMemsetD8Async(address, 0, size_bytes, stream))
        self.synchronise(stream)

    def upload(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        """Queue a copy from host memory at `host`, which must stay as it is until the stream got there."""
        with self.current():
            self.check(self.api.cuMemcpyHtoDAsync(address, host, size_bytes, stream))

    def download(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        """Queue a copy to host memory at `host`; it is there after `synchronise`."""
        with self.current():
            self.check(self.api.cuMemcpyDtoHAsync(host, address, size_bytes, stream))

    def move(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queue a copy within device memory."""
        with self.current():
            self.check(self.api.cuMemcpyDtoDAsync(target, source, size_bytes, stream))

    def pinned(self, size_bytes: int) -> int:
        """Address of page-locked host memory, which copies need not stage."""
        with self.current():
            return int(self.check(self.api.cuMemHostAlloc(size_bytes, 0x01)))  # CU_MEMHOSTALLOC_PORTABLE

    def free_pinned(self, host: int) -> None:
        with self.current():
            self.check(self.api.cuMemFreeHost(host))

    def host_word(self) -> tuple[ctypes.c_uint32, int]:
        """One page of pinned host memory that the device reads. Returns (its first word, its device address)."""
        flags = 0x01 | 0x02  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
        with self.current():
            host = int(self.check(self.api.cuMemHostAlloc(4096, flags)))
            ctypes.memset(host, 0, 4096)
            return ctypes.c_uint32.from_address(host), int(self.check(self.api.cuMemHostGetDevicePointer(host, 0)))

    def library(self, image: bytes) -> Any:
        """Load a cubin or PTX text. Belongs to the device: its kernels run in whatever lane the stream is of."""
        with self.current():
            return self.check(self.api.cuLibraryLoadData(image, [], [], 0, [], [], 0))

    def kernel(self, library: Any, name: str) -> Any:
        return self.check(self.api.cuLibraryGetKernel(library, name.encode()))

    def allow_shared(self, kernel: Any, size_bytes: int) -> None:
        """Let `kernel` have that much dynamic shared memory, and the SM all the shared memory it can be given.

        The second matters for kernels that overlap: an SM must be empty before its shared memory can be resized.
        """
        names = self.api.CUfunction_attribute
        most = names.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self.check(self.api.cuKernelSetAttribute(most, 100, kernel, self.device))
        if size_bytes:
            dynamic = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.check(self.api.cuKernelSetAttribute(dynamic, size_bytes, kernel, self.device))

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: int,
        stream: int,
        *arguments: bytes,
        shared_bytes: int = 0,
        early: bool = False,
    ) -> None:
        """Launch with by-value arguments. `early`: may start while its predecessor runs (needs sm_90's wait inside)."""
        d = self.api
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = d.CUstream(stream)
        if early:
            attribute = d.CUlaunchAttribute()
            attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(buffer) for buffer in buffers])
        self.check(d.cuLaunchKernelEx(config, d.CUfunction(int(kernel)), ctypes.addressof(pointers), 0))

    def event(self) -> Any:
        with self.current():
            return self.check(self.api.cuEventCreate(0))

    def record(self, event: Any, stream: int) -> None:
        self.check(self.api.cuEventRecord(event, stream))

    def wait_event(self, event: Any) -> None:
        self.check(self.api.cuEventSynchronize(event))

    def elapsed_ms(self, began: Any, ended: Any) -> float:
        name = "cuEventElapsedTime_v2" if hasattr(self.api, "cuEventElapsedTime_v2") else "cuEventElapsedTime"
        return float(self.check(getattr(self.api, name)(began, ended)))

    def capture(self, stream: int, work: Callable[[], None]) -> Any:
        """Capture what `work` launches on `stream` and return a graph ready to launch there."""
        d = self.api
        self.check(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        try:
            work()
        finally:
            graph = self.check(d.cuStreamEndCapture(stream))
        ready = self.check(d.cuGraphInstantiate(graph, 0))
        self.check(d.cuGraphUpload(ready, stream))
        self.check(d.cuGraphDestroy(graph))
        self.synchronise(stream)
        return ready

    def replay(self, graph: Any, stream: int) -> None:
        self.check(self.api.cuGraphLaunch(graph, stream))

    def persist_l2(self, stream: int, address: int, size_bytes: int) -> None:
        """Ask that [address, +size) stays in L2 for later work on `stream`; size 0 takes it back."""
        d = self.api
        most = self.attribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE)
        window = self.attribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE)
        with self.current():
            self.check(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most if size_bytes else 0))
            if not size_bytes:
                self.check(d.cuCtxResetPersistingL2Cache())
        value = d.CUstreamAttrValue()
        policy = d.CUaccessPolicyWindow()
        policy.base_ptr, policy.num_bytes = address, min(size_bytes, window)
        policy.hitRatio = min(1.0, most / max(1, policy.num_bytes))
        kind = d.CUaccessProperty
        policy.hitProp = kind.CU_ACCESS_PROPERTY_PERSISTING if size_bytes else kind.CU_ACCESS_PROPERTY_NORMAL
        policy.missProp = kind.CU_ACCESS_PROPERTY_STREAMING if size_bytes else kind.CU_ACCESS_PROPERTY_NORMAL
        value.accessPolicyWindow = policy
        name = d.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        self.check(d.cuStreamSetAttribute(stream, name, value))


def compile_cubin(source: str, capability: tuple[int, int], defines: Sequence[str]) -> bytes:
    """Compile CUDA C++ (no includes) for one part with NVRTC. The serving process only loads."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceUnavailable("NVRTC is not installed; run: pip install 'cockpit-voice[gpu]'") from error

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise DeviceUnavailable(f"NVRTC failed with {result[0]}")
        return result[1] if len(result) == 2 else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(), b"--std=c++17"]
    options += [f"-D{define}".encode() for define in defines]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise DeviceUnavailable(f"kernels do not compile for sm_{capability[0]}{capability[1]}: {log.decode()}")
    image = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
    check(nvrtc.nvrtcGetCUBIN(program, image))
    return bytes(image)
