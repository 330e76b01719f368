"""tokenizer.json and chat_template.jinja out of a GGUF file's own metadata.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) instead of storing it. Known here are those of the models that are
built, as llama.cpp defines them (src/llama-vocab.cpp); another name is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from models.build.llm_gguf import CONTROL, Checkpoint
from models.errors import InputError

USER_DEFINED = 4
"""GGUF token type (gguf.TokenType) of text that is matched whole, as control tokens are, but belongs to the reply."""

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(checkpoint: Checkpoint, out: Path) -> None:
    """Write `out`/tokenizer.json, the file's vocabulary, merges and control tokens, for the `tokenizers` library.

    Raises InputError for a kind of tokenizer that is not in the tables here.
    """
    kind = str(checkpoint.field("tokenizer.ggml.model"))
    tokens: Sequence[str] = checkpoint.field("tokenizer.ggml.tokens")
    if kind == "gpt2":
        tokenizer = _byte_level(checkpoint, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(checkpoint, tokens)
    else:
        raise InputError(f"{checkpoint.path.name}: tokenizer {kind!r} is not known (known: gpt2, llama)")
    types: Sequence[int] = checkpoint.field("tokenizer.ggml.token_type")
    for wanted, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        whole = [token for token, type_ in zip(tokens, types, strict=True) if type_ == wanted]
        add([AddedToken(token, special=wanted == CONTROL, normalized=False) for token in whole])
    tokenizer.save(str(out / "tokenizer.json"))


def _byte_level(checkpoint: Checkpoint, tokens: Sequence[str]) -> Tokenizer:
    """Byte-level BPE (GPT-2 and its descendants)."""
    pre = str(checkpoint.field("tokenizer.ggml.pre"))
    if pre == "qwen2":
        split = pre_tokenizers.Split(Regex(_QWEN2), "isolated")
        before = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        before = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        raise InputError(f"{checkpoint.path.name}: pre-tokenizer {pre!r} is not known (known: qwen2, smollm)")
    pairs = [tuple(merge.split(" ", 1)) for merge in checkpoint.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(checkpoint: Checkpoint, tokens: Sequence[str]) -> Tokenizer:
    """SentencePiece BPE (Gemma, Llama 2): spaces as U+2581, unknown characters as bytes, merges out of the scores."""
    vocab = {token: number for number, token in enumerate(tokens)}
    scores: Sequence[float] = checkpoint.field("tokenizer.ggml.scores")
    unknown = tokens[int(checkpoint.field("tokenizer.ggml.unknown_token_id"))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab, merges=merges_from_scores(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def merges_from_scores(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """BPE merges of a SentencePiece model: every pair whose union is a token, the better score of the union first.

    Pairs of one union come in the order of their parts' ids, as SentencePiece's own export to BPE has them.
    """
    ranked: list[tuple[float, str, str]] = []
    for token, number in vocab.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in pairs if left in vocab and right in vocab]
        known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        ranked += [(scores[number], left, right) for left, right in known]
    ranked.sort(key=lambda row: (-row[0], -len(row[1]), -len(row[2])))
    return [(left, right) for _, left, right in ranked]


def write_chat_template(checkpoint: Checkpoint, out: Path) -> bool:
    """Write `out`/chat_template.jinja exactly as stored. False when the checkpoint has none (base models)."""
    template = checkpoint.field("tokenizer.chat_template")
    if template is None:
        return False
    (out / "chat_template.jinja").write_text(str(template), encoding="utf-8", newline="")
    return True
