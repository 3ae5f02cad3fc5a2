"""Tokenizers of a few hundred tokens, of the two kinds that most families have."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

_CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there",
    "na\u00efve caf\u00e9 \u4e2d\u6587 \U0001f600",
] * 4


def byte_level_tokenizer(special: Sequence[str], vocab_size: int = 320) -> Tokenizer:
    """As GPT-2's, OPT's and Qwen's: byte-level BPE, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def byte_fallback_tokenizer(further: Sequence[str] = ()) -> Tokenizer:
    """As Llama 2's and Mistral's: words with ``▁``, bytes for what the vocabulary lacks, the first space stripped.

    ``further``: special tokens beside ``<unk>``, ``<s>`` and ``</s>``.
    """
    words = ["<unk>", "<s>", "</s>", *further, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdehlo"]
    merges = [("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o"), ("\u2581", "hello")]
    words += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(
        models.BPE(
            {word: index for index, word in enumerate(words)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(Regex(" "), "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>", *further)])
    return tokenizer
