"""The graphs of a GPU lane, as float32 twins on the CPU: PCM in, fixed shapes, and what crosses to the device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import soundfile as sf
import soxr
from numpy.typing import NDArray
from onnx.utils import Extractor
from rapidfuzz.distance import Levenshtein
from ruamel.yaml import YAML

from models.engines.base import Audio
from models.engines.placement import Buffer, CpuPlacement
from models.engines.whisper.engine import WhisperEngine
from models.engines.whisper.logmel import centred, log_mel
from models.errors import DeviceUnavailable
from pipeline.nlu.lexicon import hotwords
from tests.support.paths import AUDIO

RATE_HZ = 16_000
BOTH = ("en", "zh")
WORDS = (*hotwords("en"), *hotwords("zh"))
NAMES = ("en01", "en03", "en12", "zh04", "zh05", "zh20")
FRAMES = 3_000
CAPTURABLE = frozenset(
    [
        "Add",
        "Cast",
        "Concat",
        "Conv",
        "Gather",
        "Gelu",
        "Gemm",
        "GroupQueryAttention",
        "LayerNormalization",
        "Log",
        "MatMul",
        "Max",
        "Mul",
        "MultiHeadAttention",
        "ReduceLogSumExp",
        "Reshape",
        "ScatterElements",
        "Slice",
        "Split",
        "Sub",
        "TopK",
        "Transpose",
    ]
)
"""All have CUDA kernels for opset 21 and need no shape from the CPU but constants."""
ModelDir = Callable[[str], Path]


class Counting(CpuPlacement):
    """Counts what an engine writes and reads."""

    def __init__(self) -> None:
        super().__init__(2)
        self.written: list[int] = []
        self.read_bytes = 0

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        self.written.append(buffer.size_bytes)
        super().write(buffer, values)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        self.read_bytes += buffer.size_bytes
        return super().read(buffer)


@pytest.fixture(scope="module")
def placement() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def device(model_dir: ModelDir, placement: Counting) -> WhisperEngine:
    return WhisperEngine.load(model_dir("whisper-base-f32-device"), placement=placement)


@pytest.fixture(scope="module")
def served(model_dir: ModelDir) -> WhisperEngine:
    return WhisperEngine.load(model_dir("whisper-base"))


@pytest.fixture(scope="module")
def commands() -> dict[str, tuple[Audio, str]]:
    entries = YAML(typ="safe").load((AUDIO / "manifest.yaml").read_text(encoding="utf-8"))
    return {e["id"]: (_wav(AUDIO / e["file"]), e["text"]) for e in entries if e["id"] in NAMES}


def _wav(path: Path) -> Audio:
    samples, rate_hz = sf.read(path, dtype="float32")
    return np.asarray(soxr.resample(samples, rate_hz, RATE_HZ), dtype=np.float32)


@pytest.fixture(scope="module")
def mel_graph(model_dir: ModelDir) -> ort.InferenceSession:
    model = onnx.load(model_dir("whisper-base-f32-device") / "encoder.onnx")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("mel", onnx.TensorProto.FLOAT, (1, 80, FRAMES)))
    part = Extractor(model).extract_model(["samples"], ["mel"])
    return ort.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 40_001, 29 * RATE_HZ, 30 * RATE_HZ - 1, 30 * RATE_HZ, 500_000])
def test_spectrogram_in_the_graph_equals_ours(mel_graph: ort.InferenceSession, size: int) -> None:
    samples = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 0.1
    (mel,) = mel_graph.run(None, {"samples": centred(samples, FRAMES)[None, None]})
    np.testing.assert_allclose(mel, log_mel(samples, FRAMES), atol=1e-4)


def test_spectrogram_of_speech_equals_ours(
    mel_graph: ort.InferenceSession, commands: dict[str, tuple[Audio, str]]
) -> None:
    for samples, _ in commands.values():
        (mel,) = mel_graph.run(None, {"samples": centred(samples, FRAMES)[None, None]})
        np.testing.assert_allclose(mel, log_mel(samples, FRAMES), atol=1e-4)


def test_cross_keys_and_values_are_those_of_plain_whisper(
    device: WhisperEngine, model_dir: ModelDir, commands: dict[str, tuple[Audio, str]], placement: Counting
) -> None:
    """The CPU's encoder over every row of the 30 s, none of them standing for others, is Whisper as published."""
    samples = commands["en12"][0]
    plain = ort.InferenceSession(
        str(model_dir("whisper-base-f32") / "encoder.onnx"), providers=["CPUExecutionProvider"]
    )
    feeds = {
        "mel": log_mel(samples, FRAMES),
        "positions": np.arange(FRAMES // 2),
        "log_count": np.zeros((1, 1, 1, FRAMES // 2), np.float32),
    }
    names = [meta.name for meta in plain.get_outputs()]
    device.transcribe(samples, languages=BOTH)
    for name, expected in zip(names, plain.run(None, feeds), strict=True):
        rows = np.moveaxis(expected, 1, 2).reshape(1, FRAMES // 2, -1)
        np.testing.assert_allclose(placement.read(device.decoder.cross[name]), rows, atol=2e-3)


def test_texts_are_no_worse_than_those_of_the_served_build(
    device: WhisperEngine, served: WhisperEngine, commands: dict[str, tuple[Audio, str]]
) -> None:
    def wrong(engine: WhisperEngine) -> int:
        heard = {
            name: engine.transcribe(audio, languages=BOTH, hotwords=WORDS) for name, (audio, _) in commands.items()
        }
        assert all(heard[name].language == name[:2] for name in commands)
        return sum(Levenshtein.distance(_bare(heard[name].text), _bare(commands[name][1])) for name in commands)

    assert wrong(device) <= wrong(served)


def _bare(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


def test_hot_words_mend_a_homophone(device: WhisperEngine, commands: dict[str, tuple[Audio, str]]) -> None:
    assert "主驾" not in device.transcribe(commands["zh05"][0], languages=BOTH).text
    assert "主驾车窗" in device.transcribe(commands["zh05"][0], languages=BOTH, hotwords=WORDS).text


def test_nothing_is_left_of_a_longer_utterance(device: WhisperEngine, commands: dict[str, tuple[Audio, str]]) -> None:
    short = commands["zh04"][0]
    first = device.transcribe(short, languages=BOTH)
    loud = np.random.default_rng(3).standard_normal(29 * RATE_HZ).astype(np.float32)
    device.transcribe(loud, languages=BOTH)
    assert device.transcribe(short, languages=BOTH) == first


def test_only_pcm_goes_in_and_a_few_bytes_per_token_come_out(
    device: WhisperEngine, commands: dict[str, tuple[Audio, str]], placement: Counting
) -> None:
    samples = commands["en12"][0]
    for _ in range(2):  # the second time every bias lies in its row
        placement.written.clear()
        placement.read_bytes = 0
        heard = device.transcribe(samples, languages=BOTH, hotwords=WORDS)
    steps = len(heard.tokens) + 2
    pcm, *rest = placement.written
    assert pcm == 4 * (samples.size + 200)
    assert max(rest) < 2_000
    assert sum(rest) <= 64 + 28 * steps + 1_536 * sum(size == 1_536 for size in rest)
    assert placement.read_bytes == 104 * steps


def test_every_row_and_boost_of_the_bias_counts(device: WhisperEngine) -> None:
    decoder, special = device.decoder, device.config.tokens
    device.transcribe(np.zeros(RATE_HZ, np.float32) + 0.01, languages=BOTH)
    rng = np.random.default_rng(5)

    def step(bias: NDArray[np.float32], boosts: dict[int, float]) -> tuple[list[int], list[float]]:
        decoder.rewind(0)
        made = decoder.step([special["start"]], bias, boosts)
        return made.ids.tolist(), made.values.tolist()

    biases = [rng.standard_normal(device.config.vocabulary).astype(np.float32) * 3 for _ in range(11)]
    first = [step(bias, {}) for bias in biases]
    assert len({tuple(ids) for ids, _ in first}) > 1
    assert [step(bias, {}) for bias in biases] == first, "more biases than rows: written again"
    for count in (1, 128, 129, 400):
        boosts = {int(token): 60.0 for token in rng.choice(device.config.vocabulary, count, replace=False)}
        whole = biases[0].copy()
        whole[list(boosts)] += 60.0
        ids, values = step(biases[0], boosts)
        expected_ids, expected_values = step(whole, {})
        assert ids == expected_ids
        np.testing.assert_allclose(values, expected_values, atol=1e-4)
        assert set(ids[:1]) <= set(boosts)
    assert step(biases[0], {}) == first[0], "boosts end with their step"


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_graphs_can_be_captured(model_dir: ModelDir, name: str) -> None:
    graph = onnx.load(model_dir("whisper-base-f32-device") / f"{name}.onnx", load_external_data=False).graph
    assert {node.op_type for node in graph.node} <= CAPTURABLE
    weights = {item.name for item in graph.initializer}
    for node in graph.node:
        if node.op_type in {"Reshape", "Slice", "TopK"}:
            assert set(node.input[1:]) <= weights
    for value in graph.input:
        free = [d.dim_param for d in value.type.tensor_type.shape.dim if d.dim_param]
        assert free == (["S"] if value.name in {"tokens", "positions"} else [])


def test_float16_build_hears_the_same(
    device: WhisperEngine, model_dir: ModelDir, tmp_path: Path, commands: dict[str, tuple[Audio, str]]
) -> None:
    """On the CPU, where ONNX Runtime widens what it has no float16 kernel for: types and weights are right."""
    built = model_dir("whisper-base-f16")
    for file in ("encoder.onnx", "decoder.onnx", "tokenizer.json"):
        (tmp_path / file).symlink_to(built / file)
    config = (built / "config.json").read_text(encoding="utf-8").replace('"f16"', '"f32-device"')
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    half = WhisperEngine.load(tmp_path)
    types = {meta.type for meta in half.decoder._session.inner.get_inputs() if meta.name.startswith(("past", "cross"))}
    assert types == {"tensor(float16)"}
    for name in ("en01", "zh20"):
        mine, other = (engine.transcribe(commands[name][0], languages=BOTH) for engine in (half, device))
        assert mine.text == other.text
        assert mine.avg_logprob == pytest.approx(other.avg_logprob, abs=0.02)


class Elsewhere(CpuPlacement):
    device = "cuda"


@pytest.mark.parametrize(("model", "where"), [("whisper-base-f16", CpuPlacement), ("whisper-base", Elsewhere)])
def test_graphs_of_the_other_device_are_refused(model_dir: ModelDir, model: str, where: type[CpuPlacement]) -> None:
    with pytest.raises(DeviceUnavailable, match="cockpit models fetch --build whisper-base"):
        WhisperEngine.load(model_dir(model), placement=where())


def test_warm_up_runs_what_is_captured_four_times(device: WhisperEngine) -> None:
    runs: dict[str, list[int]] = {"encoder": [], "decoder": []}
    sessions: Sequence[tuple[str, Any]] = (("encoder", device._encoder), ("decoder", device.decoder))
    with pytest.MonkeyPatch.context() as patch:
        for name, owner in sessions:
            inner = owner._session.run

            def counted(binding: ort.IOBinding, *, graph_id: int = -1, _of: Any = inner, _name: str = name) -> None:
                runs[_name].append(graph_id)
                _of(binding, graph_id=graph_id)

            patch.setattr(owner._session, "run", counted)
        device.warm_up()
    assert runs["encoder"].count(0) >= 4
    assert runs["decoder"].count(0) >= 4
    assert runs["decoder"].count(-1) >= 1
