"""The peer of gpu_decode: the same layers in torch, compiled, with a static cache, one CUDA graph per token."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.nn.functional import gelu, linear

from benchmarks.harness.random_model import HEAD_DIM, Layer, Model


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def _rotate(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    cos, sin = row[:, 0], row[:, 1]
    f = x.float()
    a, b = f[..., : HEAD_DIM // 2], f[..., HEAD_DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def layer_step(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    k: torch.Tensor,
    v: torch.Tensor,
    rope: torch.Tensor,
    mask: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """One layer for one token: x fp16 (1, hidden), k and v fp16 (kv_heads, capacity, 256), mask fp16 (capacity,)."""
    qkv_w, o_w, gate_w, up_w, down_w, norms, qk_norms = weights
    kv_heads = k.shape[0]
    q_rows = o_w.shape[1]
    qkv = linear(_norm(x, norms[0]), qkv_w)[0]
    row = rope.index_select(0, position)[0]
    q = _rotate(_norm(qkv[:q_rows].view(-1, HEAD_DIM), qk_norms[0]), row)
    heads = qkv[q_rows:].view(2, kv_heads, HEAD_DIM)
    k.index_copy_(1, position, _rotate(_norm(heads[0], qk_norms[1]), row)[:, None])
    v.index_copy_(1, position, heads[1][:, None])
    grouped = q.view(kv_heads, -1, HEAD_DIM)
    scores = torch.softmax((grouped @ k.transpose(1, 2)).float() / HEAD_DIM**0.5 + mask, dim=-1).half()
    x = x + _norm(linear((scores @ v).view(1, -1), o_w), norms[1])
    h = _norm(x, norms[2])
    act = gelu(linear(h, gate_w), approximate="tanh") * linear(h, up_w)
    return x + _norm(linear(act, down_w), norms[3])


def _weights(layer: Layer) -> tuple[torch.Tensor, ...]:
    def dense(packed: Any) -> torch.Tensor:
        return packed.data.view(*packed.shape)

    both = dense(layer.gate_up)
    gate, up = both[0::2].contiguous(), both[1::2].contiguous()
    return dense(layer.qkv), dense(layer.o), gate, up, dense(layer.down), layer.norms, layer.qk_norms


def torch_decode(model: Model, context: int, capacity: int, tokens: int = 40) -> dict[str, Any]:
    """Milliseconds per token. A layer is compiled once and used for all; the whole token is one CUDA graph."""
    with torch.no_grad():
        return _decode(model, context, capacity, tokens)


def _decode(model: Model, context: int, capacity: int, tokens: int) -> dict[str, Any]:
    import torch._inductor.config as inductor

    inductor.coordinate_descent_tuning = True
    shape = model.shape
    length = -(-(context + tokens + 1) // 128) * 128
    began = time.perf_counter()
    caches = [torch.randn(2, shape.kv_heads, length, HEAD_DIM, device="cuda").half() for _ in model.layers]
    weights = [_weights(layer) for layer in model.layers]
    embedding = model.embedding.data.view(*model.embedding.shape)
    position = torch.full((1,), context, device="cuda")
    token = torch.full((1,), 7, device="cuda")
    slots = torch.arange(length, device="cuda")
    compiled = torch.compile(layer_step, fullgraph=True, dynamic=False)
    head = torch.compile(lambda x: linear(_norm(x, model.final_norm), embedding).argmax(-1), dynamic=False)

    def step() -> None:
        x = embedding.index_select(0, token) * shape.hidden**0.5
        mask = torch.where(slots <= position, 0.0, -torch.inf)
        for index in range(shape.layers):
            cache, rope = caches[index], model.rope[shape.is_global(index)]
            x = compiled(x, weights[index], cache[0], cache[1], rope, mask, position)
        token.copy_(head(x))
        position.add_(1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    torch.cuda.synchronize()
    prepared_s = time.perf_counter() - began
    times = []
    for _ in range(6):
        position.fill_(context)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(tokens):
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1000 / tokens)
    how = f"torch {torch.__version__}, compiled layers, static cache, CUDA graph"
    return {"how": how, "ms_per_token": statistics.median(times[1:]), "prepared_s": round(prepared_s, 1)}
