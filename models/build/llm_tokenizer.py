"""tokenizer.json and chat_template.jinja out of a GGUF file's own metadata.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) instead of storing it. Known here are those of the models that are
built, as llama.cpp defines them (src/llama-vocab.cpp); another name is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from models.build.llm_gguf import CONTROL, USER_DEFINED, Checkpoint
from models.build.tokens.reference import ReferenceTokenizer
from models.engines.llm.tokenizer import TextTokenizer
from models.engines.llm.tokens import guard as tokenizer_guard
from models.errors import InputError, TokenizerMismatch

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,
}


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
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated")
        before = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        before = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        known = ", ".join((*_SPLITS, "smollm"))
        raise InputError(f"{checkpoint.path.name}: pre-tokenizer {pre!r} is not known (known: {known})")
    pairs = [tuple(merge.split(" ", 1)) for merge in checkpoint.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(checkpoint: Checkpoint, tokens: Sequence[str]) -> Tokenizer:
    """SentencePiece BPE (Gemma, Llama 2): spaces as U+2581, unknown characters as bytes, merges out of the scores.

    A space is put before a text only where the file asks for it (`add_space_prefix`).
    """
    vocab = {token: number for number, token in enumerate(tokens)}
    scores: Sequence[float] = checkpoint.field("tokenizer.ggml.scores")
    unknown = tokens[int(checkpoint.field("tokenizer.ggml.unknown_token_id"))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab, merges=merges_from_scores(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    spaces = normalizers.Replace(" ", "\u2581")
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    prefixed = bool(checkpoint.field("tokenizer.ggml.add_space_prefix", False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefixed else spaces
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefixed else back)
    return tokenizer


def write_check(checkpoint: Checkpoint, tokenizer_dir: Path) -> None:
    """Compare the written tokenizer with the file's own vocabulary on the guard's corpus, and keep the ids for loads.

    Raises TokenizerMismatch with the first difference: such a model must not be built.
    """
    reference = ReferenceTokenizer(checkpoint)
    expected = [reference.encode(text) for text in tokenizer_guard.CORPUS]
    inner = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    made = TextTokenizer(inner, None, inner.get_vocab_size(), frozenset())
    if difference := tokenizer_guard.first_difference(made, expected):
        raise TokenizerMismatch(f"{checkpoint.path.name}: the tokenizer made of it is wrong: {difference}")
    tokenizer_guard.write(tokenizer_dir, expected)


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
