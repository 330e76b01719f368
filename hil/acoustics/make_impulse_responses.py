"""Makes `impulse_responses/*.wav`: `python -m hil.acoustics.make_impulse_responses` (extra `rig`: pyroomacoustics).

A box the size of a saloon's cabin by the image-source method: glass at the sides, cloth and seats below, a headliner
above. Two microphones in the roof console, 12 cm apart. An open window is a side wall that swallows most of its sound.
"""

from __future__ import annotations

import numpy as np
import pyroomacoustics
import soundfile
from numpy.typing import NDArray

from hil.acoustics.rooms import FOLDER, MOUTHS, WINDOWS, file_of
from pipeline.frames import SAMPLE_RATE_HZ

_SIZE_M = (2.6, 1.45, 1.15)
"""Along the car, across, up."""
_MICROPHONES_M = ((0.95, 0.665, 1.10), (0.95, 0.785, 1.10))
"""Left and right, seen by the driver on the left."""
_MOUTHS_M = {"driver": (1.25, 0.40, 0.75), "passenger": (1.25, 1.05, 0.75), "rear": (2.15, 0.72, 0.72)}
_ABSORPTION = {"west": 0.15, "east": 0.35, "south": 0.2, "north": 0.2, "floor": 0.6, "ceiling": 0.55}
_OPEN = 0.6
_ORDER = 12
_SAMPLES = 2048


def response(mouth: str, window: str) -> NDArray[np.float64]:
    """Float64 (samples, 2): of both microphones, the louder direct sound at 0.5."""
    absorption = _ABSORPTION | ({"south": _OPEN} if window == "open" else {})
    walls = {name: pyroomacoustics.Material(value) for name, value in absorption.items()}
    room = pyroomacoustics.ShoeBox(_SIZE_M, fs=SAMPLE_RATE_HZ, materials=walls, max_order=_ORDER)
    room.add_source(_MOUTHS_M[mouth])
    room.add_microphone_array(np.array(_MICROPHONES_M).T)
    room.compute_rir()
    made = np.zeros((_SAMPLES, 2))
    for channel, [rir] in enumerate(room.rir):
        made[: min(len(rir), _SAMPLES), channel] = rir[:_SAMPLES]
    made *= 0.5 / np.abs(made).max()
    return made


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for mouth in MOUTHS:
        for window in WINDOWS:
            soundfile.write(file_of(mouth, window), response(mouth, window), SAMPLE_RATE_HZ, subtype="PCM_16")


if __name__ == "__main__":
    main()
