"""The parser's network in torch: a small bidirectional transformer over a sentence and one query for each call.

Positions: one for the sentence's reason, queries, the last call, the sentence's tokens. The n-th query is the n-th
call. Its graph is written by models/build/parser.py from the same weights; a test compares the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.train.parser.encoder import MASKED, Lower

POINTERS = ("number", "start", "end")
"""What a query points at: the number's first position, a text's first and last position."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """B sentences of up to T positions and S pieces. ids (B, S), real_pieces (B, S), cover (B, T, S) bool: which pieces
    lie on a position; shares, sizes (B, T), tags (B, T, n), last (B, 2): ids; real (B, T).
    """

    ids: Tensor
    real_pieces: Tensor
    cover: Tensor
    shares: Tensor
    sizes: Tensor
    tags: Tensor
    last: Tensor
    real: Tensor


@dataclass(frozen=True, slots=True)
class NetShape:
    """Dimensions. read: after which of the encoder's layers its states are read, side by side; states: their width;
    rank: of what is added to the encoder's products; head_widths: of a query's heads; counts of the other inputs.
    """

    read: tuple[int, ...]
    states: int
    rank: int
    width: int
    layers: int
    heads: int
    inner: int
    queries: int
    most_tokens: int
    shares: int
    sizes: int
    tags: int
    tools: int
    ways: int
    reasons: int
    head_widths: dict[str, int]

    def as_config(self) -> dict[str, Any]:
        return asdict(self)


class Block(nn.Module):  # type: ignore[misc]
    """One pre-norm transformer layer."""

    def __init__(self, shape: NetShape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (B, S, width); mask: (B, 1, 1, S), 0 or MASKED."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh")))


class ParserNet(nn.Module):  # type: ignore[misc]
    """See the module. lower: the encoder's layers, of which the adapter keeps what is trained."""

    def __init__(self, shape: NetShape, lower: Lower, dropout: float = 0.05) -> None:
        super().__init__()
        self.shape = shape
        self.lower = lower
        d = shape.width
        self.enter = nn.Linear(shape.states, d)
        self.share = nn.Embedding(shape.shares, d)
        self.size = nn.Embedding(shape.sizes, d, padding_idx=0)
        self.tag = nn.Embedding(shape.tags + 1, d, padding_idx=0)
        self.place = nn.Embedding(shape.most_tokens, d)
        self.queries = nn.Parameter(torch.randn(1 + shape.queries, d) * 0.02)
        self.last = nn.Embedding(shape.tools + 1, d)
        self.way = nn.Embedding(shape.ways, d)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(d)
        self.reason = nn.Linear(d, shape.reasons)
        self.choose = nn.Linear(d, sum(shape.head_widths.values()))
        self.point = nn.Linear(d, len(POINTERS) * d)
        self.what = nn.Linear(d, 2 * d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The logits of reasons (B, R), of choices (B, K, sum of widths), of pointers (B, K, 3, T) and of what is
        missing (B, 2, T).
        """
        shares, sizes, tags, last = inputs.shares, inputs.sizes, inputs.tags, inputs.last
        cover = inputs.cover.to(self.enter.weight.dtype)
        states = self.lower(inputs.ids, inputs.real_pieces)
        own = (cover / cover.sum(2, keepdim=True).clamp(min=1)) @ states
        real = inputs.real
        batch, length = shares.shape
        hints = self.share(shares) + self.size(sizes) + self.tag(tags).sum(2)
        entered = self.enter(self.dropout(own)) + hints + self.place.weight[:length]
        x = torch.cat(
            (self.queries.expand(batch, -1, -1), (self.last(last[:, :1]) + self.way(last[:, 1:])), entered), dim=1
        )
        ahead = x.shape[1] - length
        mask = functional.pad(torch.where(real, 0.0, MASKED), (ahead, 0))[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        sentence, queries, tokens = x[:, 0], x[:, 1 : 1 + self.shape.queries], x[:, ahead:]
        hidden = mask[:, :, :, ahead:]
        scale = self.shape.width**-0.5
        points = self.point(queries).view(batch, self.shape.queries, len(POINTERS), -1)
        pointed = torch.einsum("bkpd,btd->bkpt", points, tokens) * scale + hidden
        missing = torch.einsum("bpd,btd->bpt", self.what(sentence).view(batch, 2, -1), tokens) * scale + hidden[:, 0]
        return self.reason(sentence), self.choose(queries), pointed, missing
