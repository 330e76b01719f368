"""Microphone and speaker of a process that stays."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.audio.lasting import LastingMicrophone, LastingSpeaker


@dataclass(frozen=True, slots=True)
class AudioDevices:
    """Both of them: each may come late, go and come back."""

    microphone: LastingMicrophone
    speaker: LastingSpeaker
