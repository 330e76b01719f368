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

POINTERS = ("number", "start", "end")
"""What a query points at: the number's first position, a text's first and last position."""
MASKED = -1e4


@dataclass(frozen=True, slots=True)
class NetShape:
    """Dimensions. embedding: of a vocabulary row; heads_out: widths of a query's heads; counts of the other inputs."""

    vocabulary: int
    embedding: int
    width: int
    layers: int
    heads: int
    inner: int
    queries: int
    most_tokens: int
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
    """See the module. `table`: the vocabulary's rows, (V + 1, embedding) with row 0 for no piece."""

    def __init__(self, shape: NetShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        e, d = shape.embedding, shape.width
        self.table = nn.Embedding(shape.vocabulary + 1, e, padding_idx=0)
        self.size = nn.Embedding(shape.sizes, e, padding_idx=0)
        self.tag = nn.Embedding(shape.tags + 1, e, padding_idx=0)
        self.enter = nn.Linear(9 * e, d)
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

    def forward(
        self, pieces: Tensor, words: Tensor, sizes: Tensor, tags: Tensor, last: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """pieces: (B, T, P), words, sizes: (B, T), tags: (B, T, n), last: (B, 2) ids; real: (B, T), False for padding.

        Returns the logits of reasons (B, R), of choices (B, K, sum of widths), of pointers (B, K, 3, T) and of what is
        missing (B, 2, T).
        """
        count = (pieces > 0).sum(2, keepdim=True).clamp(min=1)
        own = self.table(pieces).sum(2) / count
        features = torch.cat((own, self.table(words), self.size(sizes) + self.tag(tags).sum(2)), dim=2)
        beside = functional.pad(features, (0, 0, 1, 1))
        around = torch.cat((beside[:, :-2], features, beside[:, 2:]), dim=2)
        length = pieces.shape[1]
        entered = self.enter(self.dropout(around)) + self.place.weight[:length]
        batch = pieces.shape[0]
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
