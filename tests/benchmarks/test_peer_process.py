"""A peer that crashes, hangs or writes nonsense costs its own figures and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.chain import turn
from benchmarks.llm import decode
from benchmarks.peers import process
from benchmarks.peers.process import Peer, PeerFailed, PeerProcess
from benchmarks.peers.sequential import SequentialPeer
from benchmarks.quality import asr, tts
from tests.support import fake_peers

SHORT_S = 3.0


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "installed", lambda peer: True)


@pytest.fixture
def spawn() -> Iterator[Callable[..., PeerProcess]]:
    made: list[PeerProcess] = []

    def make(load: Callable[..., Any] = fake_peers.Peer, *arguments: Any) -> PeerProcess:
        made.append(PeerProcess(Peer.LLAMA_CPP, load, *arguments))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


def test_a_peer_answers_whatever_it_prints(
    spawn: Callable[..., PeerProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    peer = spawn()
    assert [peer.call("double", value) for value in (1, 2)] == [2, 4]
    peer.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "prints to standard output" in err


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("crash", "died by SIGSEGV while crash"),
        ("leave", "exited with code 7 while leave"),
        ("refuse", "failed while refuse: RuntimeError: out of memory"),
        ("hang", f"no answer within {SHORT_S:g} s while hang"),
        ("garble", "wrote something else than an answer while garble"),
        ("garble_length", f"no answer within {SHORT_S:g} s while garble_length"),
    ],
)
def test_a_peer_that_fails_says_how_and_is_gone(spawn: Callable[..., PeerProcess], method: str, said: str) -> None:
    peer = spawn()
    assert peer.call("double", 4) == 8
    child = peer._child
    with pytest.raises(PeerFailed, match=said) as caught:
        peer.call(method, limit_s=SHORT_S)
    assert "-DGGML_NATIVE=OFF" in str(caught.value), "how to get a build that works"
    with pytest.raises(ValueError, match="closed"):
        child.is_alive()
    assert peer.attempt("double", 4) is None, "it does not come back"
    assert peer.failure == str(caught.value)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("crashes while loading", "died by SIGSEGV while loading"), ("refuses to load", "ValueError: no such weights")],
)
def test_a_peer_may_fail_while_loading(spawn: Callable[..., PeerProcess], behaviour: str, said: str) -> None:
    peer = spawn(fake_peers.Peer, behaviour)
    assert peer.attempt("double", 1) is None
    assert said in str(peer.failure)


def test_a_peer_that_is_not_installed_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "installed", lambda peer: False)
    peer = PeerProcess(Peer.LLAMA_CPP, fake_peers.Peer)
    assert peer.attempt("double", 1) is None
    assert "llama-cpp-python is not installed; run: pip install" in str(peer.failure)
    assert peer._child is None
    peer.close()


class Still:
    """Cockpit's side of the decode benchmark, without a model."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        return 200.0, 20.0

    def logits(self, tokens: list[int]) -> Any:
        return np.eye(len(tokens), 16, dtype=np.float32)


class Tokens:
    """What `CausalLM.load` returns there."""

    tokenizer: Any

    @classmethod
    def load(cls, *_: Any, **__: Any) -> Tokens:
        made = cls()
        made.tokenizer = made
        return made

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(range(8))


def test_decode_keeps_its_own_figures_when_the_peer_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "Ours", Still)
    monkeypatch.setattr(decode, "CausalLM", Tokens)
    peer = PeerProcess(Peer.LLAMA_CPP, fake_peers.CrashingSpeed, 3)
    row = decode.measure(Path("built"), Path("full"), peer)
    assert (row.decode_tok_s, row.prefill_tok_s) == (20.0, 200.0)
    assert row.decode_ratio is row.prefill_ratio is row.peer_decode_tok_s is row.peer_kl is None
    assert "SIGSEGV" in str(row.peer_failed)
    assert "qwen: no figures of the peer: llama-cpp-python died by SIGSEGV" in decode.table({"qwen": row})


def test_a_turn_keeps_its_own_figures_when_the_peer_dies() -> None:
    peer = SequentialPeer(
        PeerProcess(Peer.FASTER_WHISPER, fake_peers.Whisper),
        PeerProcess(Peer.LLAMA_CPP, fake_peers.CrashingAssistant),
        PeerProcess(Peer.PIPER_TTS, fake_peers.Peer),
        lambda text: iter(()),
        lambda call, language: "",
    )
    assert peer.turn(np.zeros(16, np.float32)) is None
    assert "llama-cpp-python died by SIGSEGV while choose" in str(peer.failure)
    assert peer.turn(np.zeros(16, np.float32)) is None
    row = {"id": "en01", "lang": "en", "first_audio_ms": 200.0, "decided_ms": 100.0, "reply": "Turning left."}
    result = turn.summary([row], peer.failure)
    assert result["first_audio_ms"] == {"p50": 200.0, "p99": 200.0}
    assert result["ratio"] is result["ratio_p99"] is result["ratio_compute"] is None
    assert result["peer"]["failed"] == peer.failure
    assert "no figures. llama-cpp-python died by SIGSEGV" in turn.table(result)


def test_a_turn_has_a_ratio_when_the_peer_answers() -> None:
    row = {"id": "en01", "lang": "en", "first_audio_ms": 200.0, "decided_ms": 100.0, "reply": "Turning left."}
    row |= {"peer_first_audio_ms": 800.0, "peer_compute_ms": 300.0, "peer_ms": {"asr": 100, "llm": 100, "tts": 100}}
    result = turn.summary([row])
    assert result["ratio"] == 0.25
    assert result["ratio_compute"] == pytest.approx(1 / 3)
    assert "ratio P50 0.25" in turn.table(result)


def test_asr_keeps_its_own_figures_when_the_peer_dies() -> None:
    clips = [asr.Clip(f"en0{i}", "en", "en", "turn left", np.zeros(16, np.float32)) for i in range(3)]
    runs: dict[str, asr.Recognise] = {
        "plain": lambda samples: ("turn left", 5.0),
        "peer": dying_after(2, ("turn left", 50.0)),
        "biased": lambda samples: ("turn left", 5.0),
    }
    result = asr.report(asr.measure(clips, runs), "faster-whisper died by SIGSEGV")
    assert (result["wer"], result["time_ms"]) == (0.0, 5.0)
    assert result["peer_wer"] is result["time_ratio"] is None
    assert "no figures of the peer: faster-whisper died by SIGSEGV" in asr.table(result)


def test_tts_leaves_out_an_engine_that_dies() -> None:
    engines: dict[str, tts.Speak] = {"cockpit": lambda text: (1.0, 2.0, 3.0), "peer": dying_after(2, (2.0, 4.0, 3.0))}
    rows = tts.compare(engines, {"short": "Okay."}, rounds=3)
    assert [row["engine"] for row in rows] == ["cockpit"]


def dying_after(calls: int, answer: Any) -> Callable[[Any], Any]:
    left = [calls]

    def run(_: Any) -> Any:
        left[0] -= 1
        return answer if left[0] >= 0 else None

    return run


def test_idle_children_end_by_themselves(spawn: Callable[..., PeerProcess]) -> None:
    peer = spawn()
    peer.call("double", 1)
    began_s = time.monotonic()
    peer.close()
    assert time.monotonic() - began_s < 30
    peer.close()
