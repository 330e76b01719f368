"""A decoder-only language model on ONNX Runtime, loaded from the folder models/build/llm.py writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from models.engines.llm.batch import BatchRuntime, TextBatch
from models.engines.llm.chat import ChatTemplate
from models.engines.llm.cpu import CpuBody, CpuLm
from models.engines.llm.cpu_arena import SharedStatus
from models.engines.llm.device import DeviceLm
from models.engines.llm.hybrid.cpu import HybridCpuLm
from models.engines.llm.kv.gate import KvGate
from models.engines.llm.memory import LOGIT_ROWS, Sizes
from models.engines.llm.session import DEFAULT_CHUNK, Body, Head, LmSession
from models.engines.llm.tokenizer import TextTokenizer
from models.engines.llm.tokens import guard as tokenizer_guard
from models.engines.placement import Placement
from models.errors import InputError, ModelMissing, fetch_command

FILES = ("config.json", "tokenizer.json", tokenizer_guard.FILE_NAME, "model.onnx", "head.onnx", "model.bin")
DEVICE_FILES = ("choose.onnx", "score.onnx")
CPU_SLOTS, DEVICE_SLOTS = 64, 8
"""Texts of a model that was not told how many: on a CPU one that is not used takes address space and no memory."""
DEVICE_SUFFIXES = {"f16": "-f16", "f32-device": "-f32-device"}
"""The `quant` values whose folders hold graphs for devices, and how their names end."""


@dataclass(frozen=True, slots=True)
class LmConfig:
    """What config.json of a built model says; written by models/build/llm.py. quant: which kind of graphs it holds.

    layers: those with keys and values. state_layers, state_shapes: those with recurrent states, and one text's of each.
    """

    architecture: str
    quant: str
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context_tokens: int
    stop_ids: tuple[int, ...]
    bos_id: int | None
    bos_token: str
    eos_token: str
    add_bos: bool
    chat_template: bool
    rms_epsilon: float | None = None
    state_layers: int = 0
    state_shapes: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> LmConfig:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "stop_ids": tuple(values["stop_ids"])})


class Runtime(BatchRuntime, Protocol):
    """Where the graphs of a model run."""

    @property
    def head(self) -> Head: ...

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of the lanes that `use` takes; empty on the CPU."""
        ...

    @property
    def decoder(self) -> str:
        """What computes single tokens: "kernels", or "onnxruntime" with the reason where kernels might."""
        ...

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        ...

    @property
    def shared(self) -> SharedStatus | None:
        """What is stored once for several texts; None where nothing can be."""
        ...

    def open_body(self) -> Body:
        """The body for one more text. Raises InputError when there is no room for it."""
        ...

    def open_bodies(self) -> Sequence[Body]:
        """The bodies of the block of slots whose texts may share runs. Raises InputError when it is taken."""
        ...

    def use(self, lane: str) -> None:
        """Let the next runs go to `lane`. Raises KeyError."""
        ...

    def capture(self) -> None:
        """Capture every device graph; what open texts have cached is lost."""
        ...


class CausalLM:
    """The weights and the tokenizer of one model; sessions hold the running texts. weights_bytes: held once."""

    def __init__(
        self,
        config: LmConfig,
        tokenizer: TextTokenizer,
        chat: ChatTemplate,
        runtime: Runtime,
        context_tokens: int,
        weights_bytes: int,
        width: int = 8,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.chat = chat
        self.stop_ids = frozenset(config.stop_ids)
        self.vocab_size = config.vocab
        self.context_tokens = context_tokens
        self.weights_bytes = weights_bytes
        self.head = runtime.head
        self.width = width
        self._runtime = runtime
        self._open: WeakSet[LmSession] = WeakSet()

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        threads: int = 2,
        context_tokens: int = 2048,
        placements: Mapping[str, Placement] | None = None,
        slots: int | None = None,
        drafts: Sequence[int] = (),
        batch: int | None = None,
        width: int = 8,
        gate: KvGate | None = None,
    ) -> CausalLM:
        """Load a built model. context_tokens: prompt and reply together.

        slots: texts that `open_session` can open. Without placements the model runs on the CPU with `threads`, and a
        text takes memory as it grows. With placements (by lane name, all on one device) the memory of all slots is
        taken now. drafts: the values of `LmSession.draft_tokens` whose runs a device captures. batch: further slots,
        for the texts of `open_batch`; up to `width` (a power of two) of them share a run. gate: what is dropped of
        long texts' keys and values, on the CPU only.
        Raises ModelMissing, TokenizerMismatch, InputError (context longer than the model's, graphs of the other kind)
        or DeviceUnavailable (nowhere to run, or no memory).
        """
        if gate is not None and placements is not None:
            raise InputError("keys and values are dropped on the CPU only: leave llm.dialogue.kv_keep_ratio at 1.0")
        missing = [name for name in FILES if not (model_dir / name).is_file()]
        if missing:
            raise ModelMissing(f"{model_dir} lacks {', '.join(missing)}; run: {fetch_command(model_dir.name)}")
        config = LmConfig.read(model_dir / "config.json")
        _check_kind(model_dir, config, placements is not None)
        if not 0 < context_tokens <= config.context_tokens:
            raise InputError(
                f"context_tokens {context_tokens} is outside 1..{config.context_tokens} of {model_dir.name}"
            )
        slots = slots or (CPU_SLOTS if placements is None else DEVICE_SLOTS)
        batch = (CPU_SLOTS if placements is None else 0) if batch is None else batch
        if width < 1 or width & (width - 1) or width > LOGIT_ROWS:
            raise InputError(f"width {width} is no power of two up to {LOGIT_ROWS}")
        if placements is not None and (not placements or slots < 1):
            raise InputError("a model on a device needs at least one lane and one slot")
        if not all(0 < drafted < min(LOGIT_ROWS, context_tokens) for drafted in drafts):
            raise InputError(f"drafts {list(drafts)} are not all in 1..{min(LOGIT_ROWS, context_tokens) - 1}")
        tokenizer = TextTokenizer.load(
            model_dir,
            bos_id=config.bos_id if config.add_bos else None,
            vocab_size=config.vocab,
            stop_ids=frozenset(config.stop_ids),
        )
        tokenizer_guard.check(model_dir, tokenizer)
        chat = ChatTemplate.load(
            model_dir, architecture=config.architecture, bos_token=config.bos_token, eos_token=config.eos_token
        )
        runtime: Runtime
        if placements is None:
            cache = (slots + batch, config.kv_heads, context_tokens, config.head_dim)
            runtime = _on_cpu(model_dir, config, threads, cache, batch, gate)
        else:
            sizes = Sizes(
                layers=config.layers,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                hidden=config.hidden,
                vocab=config.vocab,
                capacity=context_tokens,
                slots=slots,
                drafts=tuple(drafts),
                block=batch,
                width=width,
            )
            runtime = DeviceLm.load(model_dir, placements, sizes, config.architecture, config.rms_epsilon)
        weights_bytes = (model_dir / "model.bin").stat().st_size
        return cls(config, tokenizer, chat, runtime, context_tokens, weights_bytes, width)

    @property
    def on_device(self) -> bool:
        """Whether it runs in lanes of a device and not on the CPU."""
        return bool(self._runtime.lanes)

    @property
    def decoder(self) -> str:
        """What computes single tokens: "kernels", or "onnxruntime" with the reason where kernels might."""
        return self._runtime.decoder

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        return self._runtime.token_bytes

    @property
    def shared(self) -> SharedStatus | None:
        """Beginnings that are stored once for several texts; None on a device, where each text has its copy."""
        return self._runtime.shared

    def use(self, lane: str) -> None:
        """Let the next runs of every text go to `lane`, a name of `placements`. Raises KeyError."""
        self._runtime.use(lane)

    def open_session(self) -> LmSession:
        """A new, empty text with a KV cache of its own: 2 x layers x kv_heads x head_dim x context_tokens elements.

        Raises InputError when a model on a device has no free slot; `LmSession.close` gives one back.
        """
        return self._session(self._runtime.open_body())

    def open_batch(self) -> TextBatch:
        """The texts of the `batch` slots that the model was loaded with. Raises InputError when they are taken."""
        return TextBatch(self._runtime, self.head, self._runtime.open_bodies(), self.width, self._session)

    def _session(self, body: Body) -> LmSession:
        gated = body if isinstance(body, CpuBody) and body.gate is not None else None
        session = LmSession(body, self.head, self.stop_ids, gated)
        self._open.add(session)
        return session

    def warm_up(self, *, longest_chunk: int = DEFAULT_CHUNK) -> None:
        """Run prefill, decode and every way of choosing a token once, on a text that is thrown away.

        On a device, in every lane: every slot's steps are captured first, and prefill runs at many lengths up to
        `longest_chunk`, so that no later run loads a kernel or grows an arena. Do it before anything urgent runs. Texts
        that are open then forget what they had cached, and compute it anew.
        """
        longest = max(1, min(longest_chunk, self.context_tokens // 2))
        if not self._runtime.lanes:
            self._one_request([longest])
            return
        for session in self._open:
            session.forget()
        self._runtime.capture()
        for lane in reversed(self._runtime.lanes):  # the first lane stays in use
            self._runtime.use(lane)
            self._one_request([*(1 << power for power in range(1, longest.bit_length() - 1)), longest])

    def _one_request(self, chunks: list[int]) -> None:
        session = self.open_session()
        filler = (self.tokenizer.encode("warm up ") * chunks[-1])[: chunks[-1]]
        for chunk in chunks:
            session.forget()
            session.set_tokens(filler[:chunk], chunk=chunk)
        list(session.generate(max_new_tokens=2))
        session.score([filler[:2]])
        if self._runtime.lanes:
            self.head.best(session.hidden(), np.array(filler[:2], np.int64))
        session.close()


def _on_cpu(
    model_dir: Path,
    config: LmConfig,
    threads: int,
    cache_shape: tuple[int, int, int, int],
    block: int,
    gate: KvGate | None,
) -> CpuLm:
    if not config.state_layers:
        layers = config.layers
        return CpuLm.load(model_dir, threads=threads, layers=layers, cache_shape=cache_shape, block=block, gate=gate)
    if gate is not None:
        raise InputError(
            f"{model_dir.name} has recurrent states, and no keys are dropped beside them: leave "
            "llm.dialogue.kv_keep_ratio at 1.0, or name a model of attention alone"
        )
    return HybridCpuLm.load_hybrid(
        model_dir,
        threads=threads,
        layers=config.layers,
        cache_shape=cache_shape,
        block=block,
        state_layers=config.state_layers,
        state_shapes=config.state_shapes,
    )


def _check_kind(model_dir: Path, config: LmConfig, on_device: bool) -> None:
    """Raise InputError when the folder's graphs are not those that are asked for."""
    suffix = DEVICE_SUFFIXES.get(config.quant)
    if suffix is not None and not on_device:
        other = model_dir.name.removesuffix(suffix)
        raise InputError(
            f"{model_dir.name} holds graphs for a GPU; give it placements (`device: cuda`), or use {other} on the CPU"
        )
    if suffix is None and on_device:
        other = model_dir.name.removesuffix("-f32") + "-f16"
        raise InputError(
            f"{model_dir.name} holds graphs for the CPU, quantised or with branches; use {other} on a device"
        )
    missing = [name for name in DEVICE_FILES if on_device and not (model_dir / name).is_file()]
    if missing:
        raise ModelMissing(f"{model_dir} lacks {', '.join(missing)}; run: {fetch_command(model_dir.name)}")
