"""Words, the cabin around them and the noises beside them, as one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hil.acoustics.kinds import NoiseKind, Surface, noise_of
from hil.acoustics.noise import Audio, active_level
from hil.acoustics.rooms import Microphone, Mouth, Window, through_cabin

NOMINAL_LEVEL = 10.0 ** (-26.0 / 20.0)
"""What noise is measured against where nobody speaks: speech at -26 dB below full scale, as is usual in telephony."""
_OTHER_MICROPHONE = 7919
"""Added to a noise's seed: diffuse noise is another one at the other microphone."""


@dataclass(frozen=True, slots=True)
class NoiseSource:
    """snr_db: active speech (ITU-T P.56) over the noise's RMS. The others: see hil.acoustics.kinds."""

    kind: NoiseKind
    snr_db: float
    seed: int = 1
    speed_kmh: float = 100.0
    surface: Surface = "smooth"
    level: float = 50.0

    def sound(self, samples: int, seed: int) -> Audio:
        """Of unit RMS."""
        made = {"speed_kmh": self.speed_kmh, "level": self.level}
        return noise_of(self.kind, samples, seed, surface=self.surface, **made)


@dataclass(frozen=True, slots=True)
class CabinPath:
    """From whose mouth to which microphone."""

    mouth: Mouth = "driver"
    window: Window = "closed"
    microphone: Microphone = "left"


def heard(speech: Audio, noises: Sequence[NoiseSource], cabin: CabinPath | None) -> tuple[Audio, float | None]:
    """What the microphone hears, float32 in [-1, 1], and the ratio of active speech over all noise together in dB as
    achieved (None without noise or without speech). Everything is turned down together where the sum would clip.
    """
    if cabin is not None:
        speech = through_cabin(speech, cabin.mouth, cabin.window, cabin.microphone)
    if not noises:
        return speech, None
    level = active_level(speech)
    both = cabin is not None and cabin.microphone == "both"
    noise = np.zeros(len(speech))
    for source in noises:
        part = source.sound(len(speech), source.seed).astype(np.float64)
        if both:
            part = (part + source.sound(len(speech), source.seed + _OTHER_MICROPHONE)) / 2.0
        noise += part * (level or NOMINAL_LEVEL) * 10.0 ** (-source.snr_db / 20.0)
    mixed = speech + noise
    gain = min(1.0, 0.999 / float(np.abs(mixed).max()))
    rms = float(np.sqrt(np.mean(noise**2)))
    achieved_db = None if level == 0.0 or rms == 0.0 else float(20.0 * np.log10(level / rms))
    return (mixed * gain).astype(np.float32), achieved_db
