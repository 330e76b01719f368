"""tokenizer.json and chat_template.jinja out of a GGUF file's own metadata."""

from __future__ import annotations

from pathlib import Path

from models.build.llm_gguf import Checkpoint


def write_tokenizer(checkpoint: Checkpoint, out: Path) -> None:
    """Write `out`/tokenizer.json, the file's vocabulary, merges and control tokens, for the `tokenizers` library."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    path = checkpoint.path
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.save(str(out / "tokenizer.json"))


def write_chat_template(checkpoint: Checkpoint, out: Path) -> bool:
    """Write `out`/chat_template.jinja exactly as stored. False when the checkpoint has none (base models)."""
    template = checkpoint.field("tokenizer.chat_template")
    if template is None:
        return False
    (out / "chat_template.jinja").write_text(str(template), encoding="utf-8", newline="")
    return True
