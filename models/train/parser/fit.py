"""Training of the parser: epochs with checkpoints, the loss of every head, how often it is right."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from models.store.tensor_file import read_tensors
from models.train.parser.data import IGNORED, Packed, batches
from models.train.parser.encoder import Lower
from models.train.parser.net import Inputs, NetShape, ParserNet

Told = Callable[[int, int, float], None]
"""Called with (steps done, all steps, loss of late)."""
NO_CALL_WEIGHT = 0.3
"""Weight of a query without a call: most queries have none."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """seed: of weights, order and masking. rate, encoder_rate: peak learning rates of AdamW, of the layers above and of
    what is added to the encoder's, warmed up and lowered by cosine. hide_words: share of positions whose pieces are
    unknown; hide_tags: share of sentences, and of positions, without the lexicon's tags. smoothing: of labels, share.
    device: of torch.
    """

    seed: int = 1
    epochs: int = 6
    batch: int = 256
    rate: float = 2e-3
    encoder_rate: float = 7e-4
    warm_up: float = 0.05
    decay: float = 0.01
    hide_words: float = 0.06
    hide_tags: float = 0.15
    smoothing: float = 0.0
    threads: int = 1
    device: str = "cpu"


@dataclass(slots=True)
class FitState:
    """What a run that was cut short goes on from."""

    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    held_out: list[dict[str, float]] = field(default_factory=list)


def device_of(name: str) -> str:
    """The device of torch that `name` stands for. ValueError where it is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or (name == "cuda" and torch.cuda.is_available()):
        return name
    there = "cpu, cuda, auto" if torch.cuda.is_available() else f"cpu, auto: torch {torch.__version__} finds no GPU"
    raise ValueError(f"there is no {name!r} here; there are {there}")


class Examples:
    """Packed examples as tensors on a device."""

    def __init__(self, packed: Packed, device: str) -> None:
        self._tensors = {
            each.name: torch.from_numpy(np.ascontiguousarray(getattr(packed, each.name))).to(device)
            for each in fields(packed)
        }
        self.length, self.pieces, self.device = packed.length, packed.pieces, device

    def __len__(self) -> int:
        return len(self.length)

    def batch(self, rows: NDArray[Any]) -> tuple[Inputs, dict[str, Tensor]]:
        """What the network takes, and the labels, of some rows."""
        chosen = torch.from_numpy(np.asarray(rows)).to(self.device)
        positions, pieces = int(self.length[rows].max()), int(self.pieces[rows].max())

        def taken(name: str, most: int | None = None) -> Tensor:
            return self._tensors[name][chosen, :most].long() if most else self._tensors[name][chosen].long()

        at = torch.arange(pieces, device=self.device)
        low, high = taken("low", positions)[:, :, None], taken("high", positions)[:, :, None]
        inputs = Inputs(
            ids=taken("ids", pieces),
            real_pieces=at < taken("pieces")[:, None],
            cover=(at >= low) & (at < high),
            shares=taken("shares", positions),
            sizes=taken("sizes", positions),
            tags=taken("tags", positions),
            last=taken("last"),
            real=torch.arange(positions, device=self.device) < taken("length")[:, None],
        )
        return inputs, {name: taken(name) for name in ("reason", "chosen", "options", "points", "what")}


def hidden(inputs: Inputs, unknown: int, *, words: float, tags: float) -> Inputs:
    """The inputs with a share `words` of their positions unknown and a share `tags` of their sentences without hints:
    what a misheard word and a phrase that the lexicon lacks look like.
    """
    device = inputs.sizes.device
    gone = (torch.rand(inputs.sizes.shape, device=device) < words) & (inputs.sizes == 0)
    blind = torch.rand(len(inputs.sizes), device=device) < tags
    untold = blind[:, None] | gone | (torch.rand(inputs.sizes.shape, device=device) < tags)
    pieces = (inputs.cover & gone[:, :, None]).any(1)
    ids = torch.where(pieces, unknown, inputs.ids)
    return replace(inputs, ids=ids, tags=torch.where(untold[:, :, None], 0, inputs.tags))


def fit(
    shape: NetShape,
    lower: Lower,
    packed: Packed,
    held_out: Packed,
    options: FitOptions,
    checkpoint: Path,
    *,
    start: Path | None = None,
    told: Told = lambda _done, _all, _loss: None,
) -> tuple[ParserNet, FitState]:
    """Train; goes on from `checkpoint` where it is there and was made by the same options and shape.

    start: an adapter whose weights training begins with; None: fresh ones. Raises ValueError for a checkpoint of
    another run, and for an adapter of another shape.
    """
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    lower.begin()
    net = ParserNet(shape, lower)
    if start is not None:
        begin_with(net, start)
    net.to(options.device)
    optimizer = _optimizer(net, options)
    key = _key(options, shape, len(packed), start)
    state = _resumed(checkpoint, net, optimizer, key, options.device)
    examples, beside = Examples(packed, options.device), Examples(held_out, options.device)
    per_epoch = math.ceil(len(examples) / options.batch)
    for epoch in range(state.epoch, options.epochs):
        torch.manual_seed(options.seed * 1_000_003 + epoch)
        net.train()
        lately: list[Tensor] = []
        for number, chosen in enumerate(
            batches(packed.length, options.batch, np.random.default_rng((options.seed, epoch)))
        ):
            step = epoch * per_epoch + number
            share = _schedule(step / (per_epoch * options.epochs), options.warm_up)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share
            inputs, labels = examples.batch(chosen)
            inputs = hidden(inputs, lower.unknown, words=options.hide_words, tags=options.hide_tags)
            loss = loss_of(net, inputs, labels, options.smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            lately.append(loss.detach())
            if number % 20 == 19 or number + 1 == per_epoch:
                told(step + 1, per_epoch * options.epochs, float(torch.stack(lately[-100:]).mean()))
        state.epoch = epoch + 1
        state.losses.append(float(torch.stack(lately).mean()))
        state.held_out.append(accuracy(scores_of(net, beside), held_out, shape.head_widths))
        _save(checkpoint, net, optimizer, key, state)
    return net, state


def _optimizer(net: ParserNet, options: FitOptions) -> torch.optim.AdamW:
    added = {id(each) for each in net.lower.parameters()}
    above = [each for each in net.parameters() if id(each) not in added]
    groups = [{"params": above, "peak": options.rate}]
    if added:
        groups.append({"params": list(net.lower.parameters()), "peak": options.encoder_rate})
    return torch.optim.AdamW(groups, lr=options.rate, weight_decay=options.decay, betas=(0.9, 0.98))


def begin_with(net: ParserNet, adapter: Path) -> None:
    tensors_there, _ = read_tensors(adapter)
    try:
        net.load_state_dict({name: torch.from_numpy(value.astype(np.float32)) for name, value in tensors_there.items()})
    except RuntimeError as error:  # torch names what differs
        raise ValueError(f"{adapter} has another shape or other labels than these data: {error}") from error


def _schedule(share: float, warm_up: float) -> float:
    if share < warm_up:
        return share / warm_up + 1e-3
    return 0.5 * (1 + math.cos(math.pi * (share - warm_up) / (1 - warm_up))) + 1e-3


def loss_of(net: ParserNet, inputs: Inputs, labels: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of every label that counts, summed for each sentence, averaged over sentences."""
    reasons, choices, points, missing = net(inputs)
    total = functional.cross_entropy(reasons, labels["reason"], reduction="sum", label_smoothing=smoothing)
    chosen = labels["chosen"]
    no_call = chosen[:, :, 0] == 0
    widths = net.shape.head_widths
    parts = choices.split(list(widths.values()), dim=2)
    for index, part in enumerate(parts[:-1]):
        each = functional.cross_entropy(
            part.transpose(1, 2),
            chosen[:, :, index],
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
        total = total + (torch.where(no_call, NO_CALL_WEIGHT * each, each) if index == 0 else each).sum()
    options = labels["options"]
    each = functional.binary_cross_entropy_with_logits(parts[-1], options.clamp(min=0).float(), reduction="none")
    total = total + (each * (options != IGNORED)).sum()
    total = total + functional.cross_entropy(
        points.permute(0, 3, 1, 2), labels["points"], ignore_index=IGNORED, reduction="sum"
    )
    total = total + functional.cross_entropy(
        missing.transpose(1, 2), labels["what"], ignore_index=IGNORED, reduction="sum"
    )
    return total / len(reasons)


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits and labels of held-out examples, one row each: see `ParserNet.forward`. points are padded with MASKED."""

    reasons: NDArray[np.float32]
    choices: NDArray[np.float32]
    points: list[NDArray[np.float32]]


def scores_of(net: ParserNet, examples: Examples, size: int = 256) -> Scores:
    """Run the network over examples, in their order."""
    net.eval()
    reasons, choices, points = [], [], []
    with torch.no_grad():
        for low in range(0, len(examples), size):
            rows = np.arange(low, min(low + size, len(examples)))
            r, c, p, _ = net(examples.batch(rows)[0])
            reasons.append(r.cpu().numpy())
            choices.append(c.cpu().numpy())
            points += list(p.cpu().numpy())
    lengths = examples.length
    return Scores(
        np.concatenate(reasons),
        np.concatenate(choices),
        [each[:, :, : lengths[i]] for i, each in enumerate(points)],
    )


def correct(scores: Scores, labels: Packed, widths: dict[str, int]) -> NDArray[np.bool_]:
    """(n, 2): whether the reason, and whether every label of every call, is right."""
    offsets = np.cumsum([0, *widths.values()])
    found = np.zeros((len(labels), 2), bool)
    for i in range(len(labels)):
        found[i, 0] = int(scores.reasons[i].argmax()) == labels.reason[i]
        found[i, 1] = _calls_right(scores.choices[i], scores.points[i], labels.part(slice(i, i + 1)), offsets)
    return found


def _calls_right(
    choices: NDArray[np.float32], points: NDArray[np.float32], labels: Packed, offsets: NDArray[Any]
) -> bool:
    chosen, options, pointed = labels.chosen[0], labels.options[0], labels.points[0]
    for head in range(chosen.shape[1]):
        part = choices[:, offsets[head] : offsets[head + 1]].argmax(1)
        counted = chosen[:, head] != IGNORED
        if head == 0:
            first_none = int((chosen[:, 0] == 0).argmax()) if (chosen[:, 0] == 0).any() else len(part)
            counted = counted & (np.arange(len(part)) <= first_none)
        if (part != chosen[:, head])[counted].any():
            return False
    if ((choices[:, offsets[-2] : offsets[-1]] > 0) != (options == 1))[options != IGNORED].any():
        return False
    return not (points.argmax(2) != pointed)[pointed != IGNORED].any()


def accuracy(scores: Scores, labels: Packed, widths: dict[str, int]) -> dict[str, float]:
    """Shares of held-out sentences: reason right; calls right (of commands); both."""
    right = correct(scores, labels, widths)
    act = labels.reason == 0
    return {
        "reason": float(right[:, 0].mean()),
        "calls": float(right[act, 1].mean()) if act.any() else 1.0,
        "whole": float((right[:, 0] & (right[:, 1] | ~act)).mean()),
    }


# --- checkpoints ---------------------------------------------------------------------------------------------------
def _key(options: FitOptions, shape: NetShape, count: int, start: Path | None) -> dict[str, Any]:
    """What must be the same for a run to be gone on with."""
    own = asdict(options)
    del own["threads"]
    begun = "" if start is None else hashlib.sha256(start.read_bytes()).hexdigest()
    return {"options": own, "shape": shape.as_config(), "examples": count, "start": begun}


def _save(path: Path, net: ParserNet, optimizer: torch.optim.Optimizer, key: dict[str, Any], state: FitState) -> None:
    saved = {
        "key": key,
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "state": (state.epoch, state.losses, state.held_out),
    }
    part = path.with_name(path.name + ".part")
    torch.save(saved, part)
    part.replace(path)


def _resumed(
    path: Path, net: ParserNet, optimizer: torch.optim.Optimizer, key: dict[str, Any], device: str
) -> FitState:
    if not path.is_file():
        return FitState()
    saved = torch.load(path, weights_only=True, map_location=device)
    if saved["key"] != key:
        raise ValueError(f"{path} was left by a run with other data or options; delete it, or choose another folder")
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch, losses, held_out = saved["state"]
    return FitState(epoch, losses, held_out)
