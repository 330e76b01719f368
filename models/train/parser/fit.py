"""Training of the parser: epochs with checkpoints, the loss of every head, temperatures from held-out examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from models.train.parser.data import IGNORED, Batch, Example, batch_of, batches, masked
from models.train.parser.net import NetShape, ParserNet

Told = Callable[[int, int, float], None]
"""Called with (steps done, all steps, loss of late)."""
NO_CALL_WEIGHT = 0.3
"""Weight of a query without a call: most queries have none."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """seed: of weights, order and masking. rate: peak learning rate of AdamW, warmed up and lowered by cosine."""

    seed: int = 1
    epochs: int = 2
    batch: int = 64
    rate: float = 3e-3
    warm_up: float = 0.05
    decay: float = 0.01
    hide_words: float = 0.06
    hide_tags: float = 0.15
    threads: int = 1


@dataclass(slots=True)
class FitState:
    """What a run that was cut short goes on from."""

    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    held_out: list[dict[str, float]] = field(default_factory=list)


def fit(
    shape: NetShape,
    table: NDArray[np.float32],
    examples: Sequence[Example],
    held_out: Sequence[Example],
    options: FitOptions,
    checkpoint: Path,
    *,
    unknown: int,
    told: Told = lambda _done, _all, _loss: None,
) -> tuple[ParserNet, FitState]:
    """Train; goes on from `checkpoint` where it is there and was made by the same options and shape.

    table: (vocabulary, embedding), frozen. Raises ValueError for a checkpoint of another run.
    """
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    net = ParserNet(shape)
    with torch.no_grad():
        net.table.weight[1:] = torch.from_numpy(table)
    net.table.weight.requires_grad_(False)
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate, weight_decay=options.decay, betas=(0.9, 0.98))
    state = _resumed(checkpoint, net, optimizer, options, shape, len(examples))
    lengths = [example.length for example in examples]
    per_epoch = math.ceil(len(examples) / options.batch)
    steps = per_epoch * options.epochs
    for epoch in range(state.epoch, options.epochs):
        rng = np.random.default_rng((options.seed, epoch))
        net.train()
        lately: list[float] = []
        for number, chosen in enumerate(batches(lengths, options.batch, rng)):
            step = epoch * per_epoch + number
            for group in optimizer.param_groups:
                group["lr"] = options.rate * _schedule(step / steps, options.warm_up)
            batch = batch_of([examples[i] for i in chosen])
            batch = masked(batch, rng, words=options.hide_words, tags=options.hide_tags, unknown=unknown)
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            lately.append(loss.item())
            if number % 20 == 19 or number + 1 == per_epoch:
                told(step + 1, steps, float(np.mean(lately[-100:])))
        state.epoch = epoch + 1
        state.losses.append(float(np.mean(lately)))
        state.held_out.append(accuracy(net, held_out))
        _save(checkpoint, net, optimizer, options, shape, len(examples), state)
    return net, state


def _schedule(share: float, warm_up: float) -> float:
    if share < warm_up:
        return share / warm_up + 1e-3
    return 0.5 * (1 + math.cos(math.pi * (share - warm_up) / (1 - warm_up))) + 1e-3


def tensors(batch: Batch) -> tuple[Tensor, ...]:
    """The batch as the network takes it."""
    names = ("pieces", "words", "sizes", "tags", "last", "real")
    return tuple(torch.from_numpy(getattr(batch, name)) for name in names)


def loss_of(net: ParserNet, batch: Batch) -> Tensor:
    """Cross-entropy of every label that counts, summed for each sentence, averaged over sentences."""
    reasons, choices, points, missing = net(*tensors(batch))
    total = functional.cross_entropy(reasons, torch.from_numpy(batch.reason), reduction="sum")
    chosen = torch.from_numpy(batch.chosen)
    no_call = chosen[:, :, 0] == 0
    widths = net.shape.head_widths
    parts = choices.split(list(widths.values()), dim=2)
    for index, part in enumerate(parts[:-1]):
        each = functional.cross_entropy(
            part.transpose(1, 2), chosen[:, :, index], ignore_index=IGNORED, reduction="none"
        )
        total = total + (torch.where(no_call, NO_CALL_WEIGHT * each, each) if index == 0 else each).sum()
    options = torch.from_numpy(batch.options)
    each = functional.binary_cross_entropy_with_logits(parts[-1], options.clamp(min=0).float(), reduction="none")
    total = total + each[options != IGNORED].sum()
    points_at = torch.from_numpy(batch.points)
    total = total + functional.cross_entropy(
        points.permute(0, 3, 1, 2), points_at, ignore_index=IGNORED, reduction="sum"
    )
    what = torch.from_numpy(batch.what)
    total = total + functional.cross_entropy(missing.transpose(1, 2), what, ignore_index=IGNORED, reduction="sum")
    return total / len(batch.reason)


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits and labels of held-out examples, one row each: see `ParserNet.forward`. points are padded with MASKED."""

    reasons: NDArray[np.float32]
    choices: NDArray[np.float32]
    points: list[NDArray[np.float32]]


def scores_of(net: ParserNet, examples: Sequence[Example], size: int = 128) -> Scores:
    """Run the network over examples, in their order."""
    net.eval()
    reasons, choices, points = [], [], []
    with torch.no_grad():
        for low in range(0, len(examples), size):
            part = examples[low : low + size]
            batch = batch_of(part)
            r, c, p, _ = net(*tensors(batch))
            reasons.append(r.numpy())
            choices.append(c.numpy())
            points += [p[i, :, :, : example.length].numpy() for i, example in enumerate(part)]
    return Scores(np.concatenate(reasons), np.concatenate(choices), points)


def correct(scores: Scores, examples: Sequence[Example], widths: dict[str, int]) -> NDArray[np.bool_]:
    """(n, 2): whether the reason, and whether every label of every call, is right."""
    offsets = np.cumsum([0, *widths.values()])
    found = np.zeros((len(examples), 2), bool)
    for i, example in enumerate(examples):
        found[i, 0] = int(scores.reasons[i].argmax()) == example.reason
        found[i, 1] = _calls_right(scores.choices[i], scores.points[i], example, offsets)
    return found


def _calls_right(
    choices: NDArray[np.float32], points: NDArray[np.float32], example: Example, offsets: NDArray[Any]
) -> bool:
    for head in range(example.chosen.shape[1]):
        part = choices[:, offsets[head] : offsets[head + 1]].argmax(1)
        counted = example.chosen[:, head] != IGNORED
        if head == 0:
            first_none = int((example.chosen[:, 0] == 0).argmax()) if (example.chosen[:, 0] == 0).any() else len(part)
            counted = counted & (np.arange(len(part)) <= first_none)
        if (part != example.chosen[:, head])[counted].any():
            return False
    options = choices[:, offsets[-2] : offsets[-1]] > 0
    if (options != (example.options == 1))[example.options != IGNORED].any():
        return False
    return not (points.argmax(2) != example.points)[example.points != IGNORED].any()


def accuracy(net: ParserNet, examples: Sequence[Example]) -> dict[str, float]:
    """Shares of held-out sentences: reason right; calls right (of commands); both."""
    if not examples:
        return {}
    right = correct(scores_of(net, examples), examples, net.shape.head_widths)
    act = np.array([example.reason == 0 for example in examples])
    return {
        "reason": float(right[:, 0].mean()),
        "calls": float(right[act, 1].mean()) if act.any() else 1.0,
        "whole": float((right[:, 0] & (right[:, 1] | ~act)).mean()),
    }


# --- checkpoints ---------------------------------------------------------------------------------------------------
def _key(options: FitOptions, shape: NetShape, count: int) -> dict[str, Any]:
    from dataclasses import asdict

    own = asdict(options)
    del own["threads"]
    return {"options": own, "shape": shape.as_config(), "examples": count}


def _save(
    path: Path,
    net: ParserNet,
    optimizer: torch.optim.Optimizer,
    options: FitOptions,
    shape: NetShape,
    count: int,
    state: FitState,
) -> None:
    saved = {
        "key": _key(options, shape, count),
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "state": (state.epoch, state.losses, state.held_out),
        "torch": torch.get_rng_state(),
    }
    part = path.with_name(path.name + ".part")
    torch.save(saved, part)
    part.replace(path)


def _resumed(
    path: Path, net: ParserNet, optimizer: torch.optim.Optimizer, options: FitOptions, shape: NetShape, count: int
) -> FitState:
    if not path.is_file():
        return FitState()
    saved = torch.load(path, weights_only=True)
    if saved["key"] != _key(options, shape, count):
        raise ValueError(f"{path} was left by a run with other data or options; delete it, or choose another folder")
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["torch"])
    return FitState(*saved["state"])
