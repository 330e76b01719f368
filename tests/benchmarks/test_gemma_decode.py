"""What surrounds the decode kernels and can be held to account without a GPU: layout, sizes, launches."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from benchmarks.gemma.session import (
    SOURCE,
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeTuning,
    DecodeWeights,
    Format,
    LayerAddresses,
    MatrixAddress,
    decode_defines,
    tuned,
)
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.gate import DeviceGate
from models.errors import DeviceUnavailable

SHAPE = DecodeShape(layers=7, vocab=1024)
KINDS = ("qkv", "attention", "o_proj", "gate_up", "down", "lm_head")


class FakeLauncher:
    """Records launches and allocations; a kernel is its name."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[int, int, int], int, tuple[bytes, ...], int, bool]] = []
        self.held: dict[int, int] = {}
        self.written: dict[int, bytes] = {}
        self.queue: list[object] = []
        self.next = 1 << 32

    def allocate(self, size_bytes: int) -> int:
        self.next += 1 << 24
        self.held[self.next] = size_bytes
        return self.next

    def free(self, address: int) -> None:
        del self.held[address]

    def zero(self, address: int, size_bytes: int, stream: int) -> None:
        assert self.held[address] == size_bytes

    def write(self, address: int, data: bytes, stream: int) -> None:
        self.written[address] = data
        self.queue.append((address, data))

    def replay(self, graph: str, stream: int) -> None:
        self.queue.append("replay")

    def launch(  # the driver's own signature
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: int,
        stream: int,
        *arguments: bytes,
        shared_bytes: int = 0,
        early: bool = False,
    ) -> None:
        self.launches.append((kernel, grid, block, arguments, shared_bytes, early))

    def capture(self, stream: int, work: Callable[[], None]) -> str:
        work()
        return "graph"


def session(
    launcher: FakeLauncher, format: Format = "fp16", gate: DeviceGate | None = None, every: int = 0
) -> DecodeSession:
    matrix = MatrixAddress(1, 2, 3)
    layers = tuple(LayerAddresses(matrix, matrix, matrix, matrix, 4096 * i, 64) for i in range(SHAPE.layers))
    weights = DecodeWeights(SHAPE, format, layers, matrix, 5, 6, 7, 256)
    kernels = DecodeKernels(SHAPE, format, DecodeTuning(), {name: name for name in KINDS})
    return DecodeSession(cast(BoundDriver, launcher), kernels, weights, 9, 120, 256, gate, every)


def test_sizes_are_gemma_3_4b() -> None:
    shape = DecodeShape()
    assert shape.qkv_rows == 4096
    assert shape.weight_bytes("fp16") == 2 * shape.weights == pytest.approx(7.76e9, rel=0.001)
    assert shape.weight_bytes("int4") / shape.weights == 9 / 16
    assert [i for i in range(shape.layers) if shape.is_global(i)] == [5, 11, 17, 23, 29]
    assert shape.kv_bytes(0) == shape.layers * 2 * 4 * 256 * 2
    long, window = shape.kv_bytes(4095), shape.kv_bytes(1023)
    assert long == window + 5 * 3072 * 4096, "only global layers grow beyond the window"


def test_one_token_is_five_kernels_a_layer_and_the_head() -> None:
    launcher = FakeLauncher()
    session(launcher).open()
    assert [launch[0] for launch in launcher.launches] == [*KINDS[:5]] * SHAPE.layers + ["lm_head"]
    assert all(launch[1][0] == 120 for launch in launcher.launches if launch[0] != "attention"), (
        "one block per SM of the lane"
    )


def test_arguments_are_as_long_as_the_kernels_structs() -> None:
    launcher = FakeLauncher()
    session(launcher).open()
    lengths = {launch[0]: [len(argument) for argument in launch[3]] for launch in launcher.launches}
    source = SOURCE.read_text(encoding="utf-8")
    size = {name: struct_bytes(source, name) for name in ("Matrix", "Residual", "Choice", "Attention", "Partial")}
    assert lengths == {
        "qkv": [size["Matrix"], size["Residual"], 8],
        "attention": [size["Attention"]],
        "o_proj": [size["Matrix"], size["Partial"], 8],
        "gate_up": [size["Matrix"], size["Residual"], 8],
        "down": [size["Matrix"], 8, 8],
        "lm_head": [size["Matrix"], size["Residual"], size["Choice"]],
    }


def struct_bytes(source: str, name: str) -> int:
    """sizeof of a struct of pointers, ints and floats, by C's rules."""
    found = re.search(rf"struct {name} \{{(.*?)\n\}};", source, re.S)
    assert found
    codes = ""
    for field in re.sub(r"//.*", "", found.group(1)).split(";"):
        if field.strip():
            codes += "P" if "*" in field else {"int": "i", "float": "f"}[field.split()[0]]
    return struct.calcsize(codes + "0P")


def test_residual_never_reads_what_it_writes() -> None:
    launcher = FakeLauncher()
    session(launcher).open()
    looked: set[str] = set()
    for kernel, _, _, arguments, _, _ in launcher.launches:
        if kernel in ("qkv", "gate_up", "lm_head"):
            x_in, delta, w_post, _, x_out = struct.unpack_from("5Q", arguments[1])
            assert x_in != x_out
            assert (x_in == 0) == (delta == 0) == (w_post == 0)
            looked.add(kernel)
    assert looked == {"qkv", "gate_up", "lm_head"}


def make_gate(launcher: FakeLauncher) -> DeviceGate:
    page = (ctypes.c_uint32 * 1024)()
    word = ctypes.c_uint32.from_buffer(page)
    return DeviceGate(cast(BoundDriver, launcher), "gate", word, 0x1000)


def test_gates_stand_at_every_boundary_and_what_follows_them_waits() -> None:
    launcher = FakeLauncher()
    gate = make_gate(launcher)
    session(launcher, gate=gate, every=3).open()
    names = [launch[0] for launch in launcher.launches]
    at = [i for i, name in enumerate(names) if name == "gate"]
    assert at == [0, 16, 32], "before layers 0, 3 and 6"
    early = [launch[5] for launch in launcher.launches]
    assert not any(early[i] or early[i + 1] for i in at), "a kernel that starts early would hold SMs while parked"
    assert launcher.launches[0][1:3] == ((1, 1, 1), 1), "what is parked is one thread"


def test_parked_warp_fits_beside_a_gemv_block() -> None:
    for block in (320, 384, 512, 640, 768, 1024):
        taken = DecodeTuning(block=block).registers * block
        assert 65536 - taken >= 4096


@pytest.mark.parametrize("format", ["fp16", "int8", "int4"])
def test_shared_memory_of_down_holds_activations_and_partial_sums(format: Format) -> None:
    launcher = FakeLauncher()
    session(launcher, format).open()
    (shared,) = {launch[4] for launch in launcher.launches if launch[0] == "down"}
    activations = SHAPE.ffn * 4 if format == "fp16" else SHAPE.ffn * 5 // 4
    assert activations < shared < activations + 2048


def test_close_frees_everything() -> None:
    launcher = FakeLauncher()
    opened = session(launcher).open(want_logits=True)
    opened.close()
    assert launcher.held == {}


def test_seek_outside_the_cache_is_refused() -> None:
    launcher = FakeLauncher()
    opened = session(launcher).open()
    opened.seek(3, 255)
    assert launcher.written[opened.buffers["state"]] == struct.pack("ii", 3, 255)
    for position in (-1, 256):
        with pytest.raises(ValueError, match="outside"):
            opened.seek(3, position)


def test_cache_longer_than_the_rope_tables_is_refused() -> None:
    short = session(FakeLauncher())
    short.capacity = 257
    with pytest.raises(ValueError, match="257"):
        short.open()


def test_prefill_takes_the_tokens_one_after_the_other() -> None:
    launcher = FakeLauncher()
    opened = session(launcher).open()
    opened.prefill([5, 6, 7], position=10)
    state = opened.buffers["state"]
    assert launcher.queue == [
        step for token, at in ((5, 10), (6, 11), (7, 12)) for step in ((state, struct.pack("ii", token, at)), "replay")
    ]


SMALLEST = DecodeShape(hidden=640, layers=18, q_heads=4, kv_heads=1, ffn=2048, window=512, rope_scale_global=1.0)
"""Gemma 3 270M."""


@pytest.mark.parametrize(
    ("shape", "format"),
    [
        (SMALLEST, "int8"),
        (DecodeShape(ffn=6912), "fp16"),
        (DecodeShape(hidden=8192, ffn=32768), "fp16"),
        (DecodeShape(q_heads=24), "fp16"),
        (DecodeShape(hidden=2564), "fp16"),
    ],
)
def test_shapes_that_the_kernels_do_not_serve_are_refused(shape: DecodeShape, format: Format) -> None:
    with pytest.raises(DeviceUnavailable, match="ONNX Runtime"):
        decode_defines(shape, format, DecodeTuning())


@pytest.mark.parametrize("format", ["fp16", "bf16"])
def test_the_smallest_gemma_is_served(format: Format) -> None:
    defines = decode_defines(SMALLEST, format, tuned(SMALLEST, format))
    assert {"HIDDEN=640", "FFN=2048", "DOWN_K=2048", "Q_HEADS=4", "KV_HEADS=1", "ATT_BATCH=2"} <= set(defines)
    assert SMALLEST.weights == pytest.approx(268e6, rel=0.01), "embedding once"


def test_tiles_of_down() -> None:
    assert DecodeShape().down_columns == 2560, "as the kernels were measured"
    assert DecodeShape(hidden=3840, ffn=15360).down_columns == 3072
    assert tuned(DecodeShape(), "fp16") == DecodeTuning()


def test_every_macro_of_the_kernels_is_defined() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    own = set(re.findall(r"#define (\w+)", source))
    given = {define.split("=")[0] for define in decode_defines(SHAPE, "int4", DecodeTuning())}
    code = re.sub(r"//.*|\"[^\"]*\"", "", source)
    used = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", code)) - {"TILE_K"}  # a template parameter
    assert used <= own | given
    assert given <= used
