"""What the English voice does for a GPU lane, on the CPU: convolutions as products, equal windows, only PCM read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.build.convolutions import unroll_convolutions
from models.engines.placement import Buffer, CpuPlacement
from models.engines.tts.espeak import EspeakWorker
from models.engines.tts.piper import CHUNK_FRAMES, CONTEXT_FRAMES, FIRST_CHUNK_FRAMES, SAMPLES_PER_FRAME, PiperVoice

ModelDir = Callable[[str], Path]
QUIET = {"noise_scale": 0.0, "noise_w": 0.0}
TEXT = "The temperature is set to twenty-one degrees, and the fan runs at level three for the next ten minutes."


class Counting(CpuPlacement):
    def __init__(self) -> None:
        super().__init__(2)
        self.reads: list[tuple[int, ...]] = []
        self.writes = 0

    def read(self, buffer: Buffer) -> NDArray[Any]:
        self.reads.append(buffer.shape)
        return super().read(buffer)

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        self.writes += 1
        super().write(buffer, values)


@pytest.fixture(scope="module")
def worker(model_dir: ModelDir) -> Iterator[EspeakWorker]:
    started = EspeakWorker.load(model_dir("espeak-ng"))
    yield started
    started.close()


def _convolution(shape: tuple[int, int, int], group: int, dilation: int, pad: int, stride: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), "w")
    bias = numpy_helper.from_array(rng.standard_normal(shape[0]).astype(np.float32), "b")
    said = {"kernel_shape": [shape[2]], "dilations": [dilation], "pads": [pad, pad], "strides": [stride]}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", group=group, **said)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, shape[1] * group, "n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, shape[0], "m"])
    graph = helper.make_graph([node], "one", [x], [y], [weight, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.mark.parametrize(
    ("shape", "group", "dilation", "pad"),
    [((6, 4, 1), 1, 1, 0), ((6, 4, 3), 1, 1, 0), ((6, 4, 5), 1, 1, 2), ((5, 1, 3), 5, 9, 9), ((5, 1, 1), 5, 1, 0)],
)
def test_products_equal_the_convolution(shape: tuple[int, int, int], group: int, dilation: int, pad: int) -> None:
    model = _convolution(shape, group, dilation, pad, 1)
    plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    unroll_convolutions(model.graph)
    onnx.checker.check_model(model)
    assert "Conv" not in {node.op_type for node in model.graph.node}
    unrolled = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (3, 4, 27, 100):
        x = np.random.default_rng(size).standard_normal((1, shape[1] * group, size)).astype(np.float32)
        (mine,), (expected,) = unrolled.run(None, {"x": x}), plain.run(None, {"x": x})
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_a_strided_convolution_stays() -> None:
    model = _convolution((6, 4, 3), 1, 1, 1, 2)
    unroll_convolutions(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Conv"]


def test_the_build_for_a_gpu_says_the_same(model_dir: ModelDir, worker: EspeakWorker) -> None:
    encoder = onnx.load(model_dir("piper-en-joe-gpu") / "encoder.onnx")
    assert "Conv" not in {node.op_type for node in encoder.graph.node}
    plain, gpu = (
        PiperVoice.load(model_dir(name), phonemizer=worker, scales=QUIET)
        for name in ("piper-en-joe", "piper-en-joe-gpu")
    )
    for text in (TEXT, "Yes.", "a"):
        mine, expected = (np.concatenate(list(voice.synthesise(text))) for voice in (gpu, plain))
        np.testing.assert_allclose(mine, expected, atol=2e-4)


def test_equal_windows_give_the_same_chunks(
    model_dir: ModelDir, worker: EspeakWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = PiperVoice.load(model_dir("piper-en-joe"), phonemizer=worker, scales=QUIET)
    latent = voice.latent(worker.phonemes(TEXT, "en-us"))
    frames = latent.shape()[2]
    edges = [0, FIRST_CHUNK_FRAMES, *range(FIRST_CHUNK_FRAMES + CHUNK_FRAMES, frames, CHUNK_FRAMES), frames]
    expected = [voice.vocode(latent, *ends) for ends in itertools.pairwise(edges)]
    monkeypatch.setattr(voice, "_equal_windows", True)
    sizes = set()
    for ends, samples in zip(itertools.pairwise(edges), expected, strict=True):
        first, last = voice._window(frames, *ends)
        sizes.add((ends[0] > 0, last - first))
        np.testing.assert_allclose(voice.vocode(latent, *ends), samples, atol=1e-4)
    assert sizes == {(False, FIRST_CHUNK_FRAMES + CONTEXT_FRAMES), (True, CHUNK_FRAMES + 2 * CONTEXT_FRAMES)}
    assert (frames - edges[-2]) < CHUNK_FRAMES, "the last chunk is shorter than the others"


def test_only_pcm_is_read(model_dir: ModelDir, worker: EspeakWorker) -> None:
    placement = Counting()
    voice = PiperVoice.load(model_dir("piper-en-joe"), placement=placement, phonemizer=worker)
    chunks = list(voice.synthesise(TEXT))
    assert placement.writes == 0, "phoneme ids are bound as they are"
    assert len(placement.reads) == len(chunks)
    for shape, chunk in zip(placement.reads, chunks, strict=True):
        assert chunk.size <= shape[-1] <= chunk.size + 2 * CONTEXT_FRAMES * SAMPLES_PER_FRAME
