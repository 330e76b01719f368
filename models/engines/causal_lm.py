"""A decoder-only language model on ONNX Runtime, loaded from the folder models/build/llm.py writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from models.chat import ChatTemplate
from models.engines.lm_head import LmHead
from models.engines.lm_session import DEFAULT_CHUNK, KvCache, LmSession
from models.errors import DeviceUnavailable, InputError, ModelMissing
from models.tokenizer import TextTokenizer

PROVIDERS = {"cpu": "CPUExecutionProvider"}
"""The device names this engine serves. A GPU provider joins here, with its buffers allocated in KvCache."""
FILES = ("config.json", "tokenizer.json", "model.onnx", "head.onnx", "model.bin")


@dataclass(frozen=True, slots=True)
class LmConfig:
    """What config.json of a built model says; written by models/build/llm.py."""

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

    @classmethod
    def read(cls, path: Path) -> LmConfig:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "stop_ids": tuple(values["stop_ids"])})


class CausalLM:
    """The weights and the tokenizer of one model; sessions hold the running texts."""

    def __init__(
        self,
        config: LmConfig,
        tokenizer: TextTokenizer,
        chat: ChatTemplate,
        body: ort.InferenceSession,
        head: LmHead,
        context_tokens: int,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.chat = chat
        self.stop_ids = frozenset(config.stop_ids)
        self.vocab_size = config.vocab
        self.context_tokens = context_tokens
        self.head = head
        self._body = body

    @classmethod
    def load(cls, model_dir: Path, *, threads: int = 2, context_tokens: int = 2048, provider: str = "cpu") -> CausalLM:
        """Load a built model. context_tokens: prompt and reply together; memory for them is taken per session.

        Raises ModelMissing, InputError (context longer than the model's) or DeviceUnavailable (provider not there).
        """
        missing = [name for name in FILES if not (model_dir / name).is_file()]
        if missing:
            raise ModelMissing(f"{model_dir} lacks {', '.join(missing)}; run `cockpit models build`")
        config = LmConfig.read(model_dir / "config.json")
        if not 0 < context_tokens <= config.context_tokens:
            raise InputError(
                f"context_tokens {context_tokens} is outside 1..{config.context_tokens} of {model_dir.name}"
            )
        tokenizer = TextTokenizer.load(
            model_dir,
            bos_id=config.bos_id if config.add_bos else None,
            vocab_size=config.vocab,
            stop_ids=frozenset(config.stop_ids),
        )
        chat = ChatTemplate.load(model_dir, bos_token=config.bos_token, eos_token=config.eos_token)
        body = open_graph(model_dir / "model.onnx", threads, provider)
        head = LmHead(open_graph(model_dir / "head.onnx", threads, provider))
        return cls(config, tokenizer, chat, body, head, context_tokens)

    def open_session(self) -> LmSession:
        """A new, empty text with its own KV cache: 2 x layers x kv_heads x head_dim x context_tokens x 4 bytes."""
        c = self.config
        cache = KvCache.allocate(c.layers, c.kv_heads, c.head_dim, self.context_tokens)
        return LmSession(self._body, self.head, cache, self.stop_ids)

    def warm_up(self) -> None:
        """Run prefill, decode and every way of choosing a token once, on a text that is thrown away."""
        session = self.open_session()
        filler = self.tokenizer.encode("warm up ") * DEFAULT_CHUNK
        session.set_tokens(filler[: min(DEFAULT_CHUNK, self.context_tokens // 2)])
        list(session.generate(max_new_tokens=2))
        session.score([filler[:2]])


def open_graph(path: Path, threads: int, provider: str) -> ort.InferenceSession:
    """An ONNX Runtime session on exactly the provider asked for; raises DeviceUnavailable otherwise."""
    wanted = PROVIDERS.get(provider)
    if wanted is None or wanted not in ort.get_available_providers():
        have = ", ".join(name for name, full in PROVIDERS.items() if full in ort.get_available_providers())
        raise DeviceUnavailable(f"device '{provider}' cannot run {path.name} here; available: {have}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry(
        "session.force_spinning_stop", "1"
    )  # no spinning between runs: others need the cores
    session = ort.InferenceSession(path, options, providers=[wanted])
    active = session.get_providers()[0]
    if active != wanted:
        raise DeviceUnavailable(
            f"{path.name} was asked to run on {wanted} but runs on {active}; check the installation"
        )
    return session
