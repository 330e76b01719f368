"""WAV in: every rate, width and channel count, odd lengths, broken files; pace; and WAV out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from models.errors import InputError
from pipeline.audio.piped import taken_in
from pipeline.audio.source import WavSource
from pipeline.audio.wav import read_wav, write_wav
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame
from tests.support.audio_frames import tone
from tests.support.fake_clock import FakeClock
from tests.support.paths import AUDIO
from tests.support.waiting import ended

SPEECH = AUDIO / "en09.wav"


def joined(frames: list[AudioFrame]) -> NDArray[np.float32]:
    return np.concatenate([frame.samples for frame in frames])


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_any_wav_becomes_16_khz_mono(tmp_path: Path, rate_hz: int, channels: int, subtype: str) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.tile(tone(0.5, rate_hz)[:, None], channels), rate_hz, subtype=subtype)
    heard = read_wav(path)
    wanted = tone(0.5, SAMPLE_RATE_HZ)
    assert heard.dtype == np.float32
    assert abs(len(heard) - len(wanted)) <= 1
    inner = slice(400, 7_000)  # a resampler rings where the tone is cut
    assert np.abs(heard[inner] - wanted[inner]).max() < (0.02 if subtype == "PCM_U8" else 0.002)


def test_channels_are_averaged(tmp_path: Path) -> None:
    left, right = tone(0.1, 16_000), tone(0.1, 16_000, 1000.0)
    soundfile.write(tmp_path / "two.wav", np.stack([left, right], axis=1), 16_000, subtype="FLOAT")
    assert np.allclose(read_wav(tmp_path / "two.wav"), (left + right) / 2, atol=1e-6)


def test_a_channel_of_opposite_phase_does_not_silence_the_voice(tmp_path: Path) -> None:
    voice = tone(0.1, 16_000)
    soundfile.write(tmp_path / "two.wav", np.stack([voice, -0.8 * voice], axis=1), 16_000, subtype="FLOAT")
    assert np.abs(read_wav(tmp_path / "two.wav")).max() == pytest.approx(0.45, abs=0.01)


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_voice_on_one_of_many_channels_keeps_its_level(tmp_path: Path, at: int) -> None:
    channels = np.full((1600, 8), 0.001)
    channels[:, at] = tone(0.1, 16_000)
    soundfile.write(tmp_path / "eight.wav", channels, 16_000, subtype="FLOAT")
    assert np.allclose(read_wav(tmp_path / "eight.wav"), channels[:, at], atol=1e-6)


def chunk(name: bytes, body: bytes) -> bytes:
    return name + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2)


def with_lengths(wav: bytes, length: int) -> bytes:
    """The header's two lengths replaced, as a recorder leaves them that was killed or wrote to a pipe."""
    said = length.to_bytes(4, "little")
    return wav[:4] + said + wav[8:40] + said + wav[44:]


@pytest.mark.parametrize("length", [0, 0x7FFFFFFF, 0xFFFFFFD3, 0xFFFFFFFF])
@pytest.mark.parametrize(
    "behind",
    [b"", chunk(b"LIST", b"INFOISFT" + b"\x7f" * 51), chunk(b"LIST", b"\x7f" * 9) + chunk(b"id3 ", b"\x7f" * 300)],
)
def test_a_data_chunk_without_a_length_goes_on_to_the_end_or_to_the_next_chunk(
    tmp_path: Path, length: int, behind: bytes
) -> None:
    path = tmp_path / "killed.wav"
    path.write_bytes(with_lengths(SPEECH.read_bytes(), length) + behind)
    assert np.array_equal(read_wav(path), read_wav(SPEECH))


def test_a_file_that_really_holds_no_samples_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "none.wav"
    path.write_bytes(with_lengths(SPEECH.read_bytes()[:44], 0))
    assert len(read_wav(path)) == 0
    path.write_bytes(with_lengths(SPEECH.read_bytes()[:44], 0) + chunk(b"LIST", b"x" * 40))
    assert len(read_wav(path)) == 0


@pytest.mark.parametrize("rate_hz", [1, 3_999, 1_000_000])
def test_a_rate_that_no_recorder_has_is_refused(tmp_path: Path, rate_hz: int) -> None:
    path = tmp_path / "rate.wav"
    wav = SPEECH.read_bytes()
    path.write_bytes(wav[:24] + rate_hz.to_bytes(4, "little") + wav[28:])
    with pytest.raises(InputError, match=f"says {rate_hz} Hz"):
        WavSource(path)


def test_a_pipe_is_taken_in_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a pipe"):
        WavSource(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(SPEECH.read_bytes(),), daemon=True)
    writer.start()
    with taken_in([SPEECH, pipe]) as (file, copy):
        ended(writer)
        assert file == SPEECH
        assert np.array_equal(read_wav(copy), read_wav(SPEECH))
    assert not copy.parent.exists()
    monkeypatch.setattr("pipeline.audio.piped.WRITER_WITHIN_S", 0.05)
    with pytest.raises(InputError, match="nobody wrote"), taken_in([pipe]):
        pass
    with pytest.raises(InputError, match="not a WAV file"), taken_in([Path("/dev/null")]):
        pass


def test_speech_survives_a_detour_through_48_khz_stereo_24_bit(tmp_path: Path) -> None:
    speech = read_wav(SPEECH)
    up = read_wav(SPEECH, 48_000)
    soundfile.write(tmp_path / "up.wav", np.stack([up, up], axis=1), 48_000, subtype="PCM_24")
    back = read_wav(tmp_path / "up.wav")
    size = min(len(back), len(speech))
    assert abs(len(back) - len(speech)) <= 2
    assert np.corrcoef(back[:size], speech[:size])[0, 1] > 0.999


def test_values_beyond_full_scale_are_clipped_and_no_numbers_refused(tmp_path: Path) -> None:
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.array([0.0, 1.7, -2.0]), 16_000, subtype="FLOAT")
    assert read_wav(path).tolist() == [0.0, 1.0, -1.0]
    soundfile.write(path, np.array([0.0, np.nan]), 16_000, subtype="FLOAT")
    with pytest.raises(InputError, match="no numbers"):
        read_wav(path)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1024, 4096, 4097])
@pytest.mark.parametrize("frame_samples", [1, 160, 512])
def test_frames_at_odd_lengths(tmp_path: Path, length: int, frame_samples: int) -> None:
    if frame_samples == 1 and length > 600:
        length = 600
    path = tmp_path / "odd.wav"
    samples = (np.arange(length) % 100 / 200).astype(np.float32)
    soundfile.write(path, samples, 16_000, subtype="FLOAT")
    frames = list(WavSource(path, pace="fast", frame_samples=frame_samples))
    assert [frame.end_of_stream for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert all(len(frame.samples) == frame_samples for frame in frames[:-1])
    assert np.array_equal(joined(frames), samples)
    positions = np.cumsum([0, *(len(frame.samples) for frame in frames[:-1])])
    assert [frame.first_sample for frame in frames] == positions.tolist()
    assert not any(frame.samples.flags.writeable for frame in frames)


def test_real_time_pace_follows_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(0.1, 16_000), 16_000)
    clock = FakeClock()
    start_ns = clock.ns
    ends = []
    for frame in WavSource(path, clock=clock):
        ends.append(frame.first_sample + len(frame.samples))
        assert frame.captured_ns == start_ns + ends[-1] * 62_500
        assert clock.ns >= frame.captured_ns
    assert ends == [512, 1024, 1536, 1600]


@pytest.mark.parametrize("keep_bytes", [44, 45, 46, 1_000, 40_001])
def test_a_truncated_file_yields_what_is_there(tmp_path: Path, keep_bytes: int) -> None:
    path = tmp_path / "cut.wav"
    path.write_bytes(SPEECH.read_bytes()[:keep_bytes])
    whole = read_wav(SPEECH)
    heard = read_wav(path)
    assert len(heard) == (keep_bytes - 44) // 2
    assert np.array_equal(heard, whole[: len(heard)])


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("empty.wav", b"", "0 bytes"),
        ("text.wav", b"this is no audio at all, only some words in a file", "convert it"),
        ("header.wav", SPEECH.read_bytes()[:20], "convert it"),
        ("noise.wav", bytes(range(256)) * 10, "convert it"),
    ],
)
def test_what_is_no_wav_is_refused_with_a_remedy(tmp_path: Path, name: str, content: bytes, remedy: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=remedy) as caught:
        WavSource(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_a_folder_and_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        WavSource(tmp_path / "none.wav")
    with pytest.raises(InputError, match="is a folder"):
        WavSource(tmp_path)
    soundfile.write(tmp_path / "song.wav", tone(0.1, 16_000), 16_000, format="FLAC")
    with pytest.raises(InputError, match="is FLAC, not WAV"):
        WavSource(tmp_path / "song.wav")


def test_the_header_is_never_heard(tmp_path: Path) -> None:
    path = tmp_path / "extra.wav"
    soundfile.write(path, np.zeros(100), 16_000)
    data = path.read_bytes()
    note = b"LIST" + (26).to_bytes(4, "little") + b"INFOICMT" + (14).to_bytes(4, "little") + b"\xff\x7f" * 7
    body = data[:36] + note + data[36:]
    path.write_bytes(body[:4] + (len(body) - 8).to_bytes(4, "little") + body[8:])
    heard = read_wav(path)
    assert len(heard) == 100
    assert not heard.any()


def test_a_wav_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    write_wav(path, np.array([0.5, -0.5, 3.0], np.float32), 22_050)
    assert soundfile.info(path).samplerate == 22_050
    before = path.read_bytes()
    with pytest.raises(ValueError, match="dtype"):
        write_wav(path, np.array([1j]), 22_050)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["out.wav"]
