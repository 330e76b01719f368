"""The espeak-ng child process: it answers, it may die, and it never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from models.build.espeak import build_espeak
from models.engines.tts.espeak import SAMPLE_RATE_HZ, EspeakVoice, EspeakWorker, SpeechFailed
from models.errors import ConfigError, ModelMissing
from tests.support.paths import ROOT
from tests.support.waiting import LONG_S, until

ModelDir = Callable[[str], Path]


@pytest.fixture
def worker(model_dir: ModelDir) -> Iterator[EspeakWorker]:
    started = EspeakWorker.load(model_dir("espeak-ng"), timeout_s=LONG_S)
    yield started
    started.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world.", "həlˈoʊ, wˈɜːld."),
        ("Is it five? Yes!", "ɪz ɪt fˈaɪv? jˈɛs!"),
        ("", ""),
        ("?!...", ""),
        ("yes\nno", "jˈɛs nˈoʊ"),
    ],
)
def test_phonemes_keep_the_punctuation(worker: EspeakWorker, text: str, expected: str) -> None:
    assert worker.phonemes(text, "en-us") == expected


def test_mandarin_has_tones(worker: EspeakWorker) -> None:
    assert any(character.isdigit() for character in worker.phonemes("你好", "cmn"))


def test_an_unknown_voice_is_an_error_and_the_worker_stays(worker: EspeakWorker) -> None:
    with pytest.raises(SpeechFailed, match="no voice 'xx-nowhere'"):
        worker.phonemes("hello", "xx-nowhere")
    assert worker.phonemes("yes", "en-us") == "jˈɛs"
    assert worker.starts == 1


def test_a_worker_that_died_between_requests_is_replaced(worker: EspeakWorker) -> None:
    worker.phonemes("yes", "en-us")
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert worker.phonemes("yes", "en-us") == "jˈɛs"
    assert worker.starts == 2
    assert worker.pid != first


def test_a_worker_that_hangs_is_ended_after_the_timeout(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = EspeakWorker.load(model_dir("espeak-ng"), timeout_s=LONG_S)
    worker.phonemes("yes", "en-us")
    hung = worker.pid
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_timeout_s", 0.3)
        with pytest.raises(SpeechFailed, match=r"did not answer within 0\.3 s"):
            worker.phonemes("yes", "en-us")
    assert not alive(hung)
    assert worker.phonemes("yes", "en-us") == "jˈɛs"
    assert worker.starts == 2
    worker.close()


def test_a_crash_during_a_request_is_an_error_and_the_next_recovers(worker: EspeakWorker) -> None:
    worker.phonemes("yes", "en-us")
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    killer = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; kill -KILL {pid}"])
    with pytest.raises(SpeechFailed, match="died"):
        worker.phonemes("yes", "en-us")
    killer.wait()
    assert worker.phonemes("yes", "en-us") == "jˈɛs"
    assert worker.starts == 2


def test_close_and_collection_end_the_child(model_dir: ModelDir) -> None:
    worker = EspeakWorker.load(model_dir("espeak-ng"))
    worker.phonemes("yes", "en-us")
    first = worker.pid
    worker.close()
    assert worker.pid is None
    worker.phonemes("yes", "en-us")
    second = worker.pid
    assert first is not None
    assert second is not None
    del worker
    until(lambda: not alive(first))
    until(lambda: not alive(second))


@pytest.mark.parametrize("ending", ["", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_child_ends_with_its_parent(model_dir: ModelDir, ending: str) -> None:
    program = (
        "import sys, pathlib\n"
        "from models.engines.tts.espeak import EspeakWorker\n"
        "worker = EspeakWorker.load(pathlib.Path(sys.argv[1]))\n"
        "worker.phonemes('yes', 'en-us')\n"
        f"print(worker.pid, flush=True)\n{ending}\n"
    )
    command = [sys.executable, "-c", program, str(model_dir("espeak-ng"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False)
    until(lambda: not alive(int(done.stdout)))


def test_the_library_stays_out_of_this_process(worker: EspeakWorker) -> None:
    worker.phonemes("yes", "en-us")
    assert "espeak" not in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert "espeak" in Path(f"/proc/{worker.pid}/maps").read_text(encoding="utf-8")


def test_the_mandarin_voice(model_dir: ModelDir) -> None:
    voice = EspeakVoice.load(model_dir("espeak-ng"))
    voice.warm_up()
    chunks = list(voice.synthesise("前方两百米左转，然后靠右行驶。"))
    samples = np.concatenate(chunks)
    assert voice.sample_rate_hz == SAMPLE_RATE_HZ
    assert samples.dtype == np.float32
    assert 2.0 < samples.size / SAMPLE_RATE_HZ < 6.0
    assert 0.1 < np.abs(samples).max() <= 1.0
    assert len(chunks) > 10
    assert list(voice.synthesise("")) == []
    assert list(voice.synthesise("，。！")) == []
    for text in ("好", "打开 WiFi 和 GPS", "很长的句子" * 100, "🙂好", "\x00好"):
        assert sum(chunk.size for chunk in voice.synthesise(text)) > 1000
    again = np.concatenate(list(voice.synthesise("前方两百米左转，然后靠右行驶。")))
    assert again.size == pytest.approx(samples.size, rel=0.01)
    voice.close()


def test_a_voice_stopped_in_the_middle_speaks_on(model_dir: ModelDir) -> None:
    voice = EspeakVoice.load(model_dir("espeak-ng"))
    speech = voice.synthesise("前方两百米左转，然后靠右行驶。")
    next(speech)
    speech.close()  # type: ignore[attr-defined]
    assert sum(chunk.size for chunk in voice.synthesise("好")) > 1000
    voice.close()


def test_missing_models_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build espeak-ng"):
        EspeakWorker.load(tmp_path)
    with pytest.raises(ConfigError, match="libespeak-ng"):
        build_espeak(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("name", "text"), [("cmn", "好的，正在为您导航到机场。"), ("en-us", "Okay, turning left.")])
def test_speed_makes_speech_shorter_and_longer(worker: EspeakWorker, name: str, text: str) -> None:
    slow, usual, fast, again = (
        sum(map(len, EspeakVoice(worker, name, speed).synthesise(text))) for speed in (0.5, 1.0, 2.0, 1.0)
    )
    assert slow > 1.7 * usual > 2.5 * fast
    assert again == pytest.approx(usual, rel=0.05)  # its pauses differ a little from run to run
