"""The sentence encoder: the graph is the file's network, pieces are SentencePiece's, like meanings lie close."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.build.e5_file import E5File
from models.build.sentence_encoder import build_sentence_encoder, kept_pieces
from models.engines.sentence_encoder import SentenceEncoder, SentenceTokenizer
from models.errors import InputError, ModelMissing
from models.store.store import Store

NAME = "sentence-encoder"
F32 = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(model_dir: Callable[[str], Path]) -> Path:
    return model_dir(NAME)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SentenceEncoder:
    return SentenceEncoder.load(folder)


@pytest.fixture(scope="module")
def file(folder: Path, model_store: Store) -> E5File:
    assert folder.is_dir()
    return E5File.open(model_store.source(NAME, "e5-small-q4.bin"))


def test_the_same_meaning_lies_closer_than_another_in_either_language(encoder: SentenceEncoder) -> None:
    pairs = [
        ("What does the yellow engine light mean?", "黄色的发动机灯是什么意思？"),
        ("How do I change a flat tyre?", "轮胎破了怎么换？"),
        ("What is the capital of France?", "法国的首都是哪里？"),
        ("How do I pair my phone?", "手机怎么连接蓝牙？"),
    ]
    english = encoder.embed([pair[0] for pair in pairs])
    mandarin = encoder.embed([pair[1] for pair in pairs])
    assert english.shape == (4, 384)
    assert english.dtype == np.float32
    assert np.allclose(np.linalg.norm(english, axis=1), 1, atol=1e-5)
    likeness = english @ mandarin.T
    assert likeness.argmax(1).tolist() == [0, 1, 2, 3]
    assert likeness.argmax(0).tolist() == [0, 1, 2, 3]


def test_a_question_finds_its_passage(encoder: SentenceEncoder) -> None:
    passages = ["Check the tyre pressure once a month, when the tyres are cold.", "儿童座椅应安装在后排座椅上。"]
    questions = ["轮胎气压多久检查一次", "Where does a child seat go?"]
    found = encoder.embed(passages, "passage") @ encoder.embed(questions).T
    assert found.argmax(0).tolist() == [0, 1]


def test_the_graph_is_the_network_of_the_file(
    encoder: SentenceEncoder, file: E5File, folder: Path, tmp_path: Path
) -> None:
    text = "打开主驾车窗 to 22.5"
    (ids,) = SentenceTokenizer.load(folder).windows(f"query: {text}")
    vector = _reference(file, kept_pieces(file)[ids])
    assert float(encoder.embed([text])[0] @ vector) > 0.999  # the graph rounds activations to 8 bits


def test_no_texts_and_an_empty_one(encoder: SentenceEncoder) -> None:
    assert encoder.embed([]).shape == (0, 384)
    assert np.isfinite(encoder.embed([""])).all()


def test_a_long_text_is_read_in_stretches(encoder: SentenceEncoder) -> None:
    first, second = "The tyres are checked when they are cold. " * 60, "儿童座椅应安装在后排座椅上。" * 60
    both = encoder.embed([first + second])[0]
    alone = encoder.embed([first, second])
    assert min(alone @ both) > 0.85  # neither half was cut off


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("把副驾驶的车窗打开一半", "▁ 把 副 驾驶 的 车 窗 打开 一半"),
        ("set it to 22.5 degrees", "▁set ▁it ▁to ▁2 2.5 ▁degree s"),
        ("ＡＣ on", "▁AC ▁on"),
    ],
)
def test_pieces_are_those_of_sentencepiece_and_know_their_characters(text: str, pieces: str, folder: Path) -> None:
    tokenizer = SentenceTokenizer.load(folder)
    ids, places = tokenizer.pieces(text)
    assert [tokenizer.piece(number) for number in ids] == pieces.split()
    covered = {at for start, end in places for at in range(start, end)}
    assert covered >= {at for at, character in enumerate(text) if character != " "}


def test_another_script_is_unknown_and_no_error(folder: Path) -> None:
    tokenizer = SentenceTokenizer.load(folder)
    assert tokenizer.unknown in tokenizer.pieces("открой окно")[0]


def test_another_file_is_refused_by_name(tmp_path: Path, file: E5File) -> None:
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match=r"model\.gguf is no multilingual-e5 file"):
        build_sentence_encoder(wrong, tmp_path / "out")
    cut = tmp_path / "cut.bin"
    cut.write_bytes(file.path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"cut\.bin is damaged"):
        build_sentence_encoder(cut, tmp_path / "out")


def test_a_folder_without_it_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch"):
        SentenceEncoder.load(tmp_path / NAME)


def _reference(file: E5File, ids: NDArray[np.int64]) -> F32:
    """The vector of file ids (S,), written down plainly from e5.c."""
    shape, width = file.shape, file.shape.hidden

    def linear(x: F32, name: str, rows: int, columns: int) -> F32:
        found: F32 = x @ file.values(f"{name}.w", rows, columns).T + file.floats(f"{name}.b", rows)
        return found

    def normed(x: F32, name: str) -> F32:
        centred = x - x.mean(1, keepdims=True)
        centred /= np.sqrt((centred**2).mean(1, keepdims=True) + shape.epsilon)
        found: F32 = centred * file.floats(f"{name}.w", width) + file.floats(f"{name}.b", width)
        return found

    place = file.floats("emb.pos", shape.positions, width)[: len(ids)]
    x = file.values("emb.word", shape.vocabulary, width)[ids] + place + file.floats("emb.type", 1, width)
    x = normed(x, "emb.ln")
    erf = np.vectorize(math.erf)
    for layer in range(shape.layers):
        q, k, v = (linear(x, f"l{layer}.{part}", width, width).reshape(len(ids), shape.heads, -1) for part in "qkv")
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(width // shape.heads)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), width)
        x = normed(x + linear(mixed, f"l{layer}.ao", width, width), f"l{layer}.aln")
        inner = linear(x, f"l{layer}.fi", shape.inner, width)
        inner = (0.5 * inner * (1 + erf(inner / math.sqrt(2)))).astype(np.float32)
        x = normed(x + linear(inner, f"l{layer}.fo", width, shape.inner), f"l{layer}.oln")
    mean = x.mean(0)
    found: F32 = mean / np.linalg.norm(mean)
    return found
