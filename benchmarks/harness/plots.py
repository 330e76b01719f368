"""Pictures of results. They need matplotlib, from the `bench` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def plot_policy(machines: Mapping[str, Mapping[str, Any]], block: int, file: Path) -> None:
    """Draw the price of each block of `block` requests: the policy's, and each fixed arm's; one picture a machine."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2 * len(machines)), layout="constrained")
    for axes, (machine, row) in zip(figure.subplots(len(machines), squeeze=False)[:, 0], machines.items(), strict=True):
        for label, prices in row["price_by_block"].items():
            counts = block * np.arange(1, len(prices) + 1)
            learning = label == "policy"
            axes.plot(
                counts, prices, label=label, linewidth=2.5 if learning else 1, color="black" if learning else None
            )
        for at, arm in zip(block * np.arange(1, len(row["arms"]) + 1), row["arms"], strict=True):
            axes.annotate(
                arm.rpartition(" ")[2], (at, 0.02), xycoords=("data", "axes fraction"), fontsize=7, ha="center"
            )
        axes.set(
            title=f"{machine} machine", ylabel="price", xlabel="requests (below: the policy's arm)", ylim=(0, None)
        )
        axes.legend(fontsize=8)
    figure.savefig(file, dpi=150)
