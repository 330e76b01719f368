"""Pictures of results. They need matplotlib, from the `bench` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def plot_first_audio(series: Mapping[str, Sequence[float | None]], limit_ms: float, file: Path) -> None:
    """Draw the share of commands answered by each time: one line per label of `series`, in ms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for label, times in series.items():
        values = np.sort([value for value in times if value is not None])
        axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label=label)
    axes.axvline(limit_ms, color="grey", linestyle=":", label="limit (P50)")
    axes.set(xlabel="end of speech to first audio, ms", ylabel="share of commands", xlim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
