"""SentencePiece models (Kudo and Richardson 2018) as tokenizers of the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from blade_llm.tokenizer_files.errors import TokenizerFormatError
from blade_llm.tokenizer_files.model_proto import (
    BPE,
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
)

_SPACE: Final = "\u2581"
_BYTE_LOOKALIKE: Final = Regex("<(?=0x[0-9A-F]{2}>)")
"""Text like the name of a byte's piece, which the library's Unigram would take for that byte."""


def is_sentencepiece(data: bytes) -> bool:
    """Whether a ``tokenizer.model`` is SentencePiece's: its first field is a piece. tiktoken's are lines of text."""
    return data[:1] == b"\n" and b" " not in data[:2]


def convert_sentencepiece(path: Path, data: bytes, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer, with its control and user-defined pieces as added tokens. Raises :class:`TokenizerFormatError`.

    Args:
        config: ``tokenizer_config.json``. With ``legacy`` false the text after a special token gets no first space.
    """
    try:
        model = read_model(data)
    except (ValueError, AssertionError) as error:
        raise TokenizerFormatError(f"{path} cannot be read as a SentencePiece model: {error}") from None
    if model.model_type not in (BPE, UNIGRAM):
        raise TokenizerFormatError(f"{path} is a SentencePiece model of words or characters; only BPE and Unigram work")
    if model.space_as_suffix or not model.escape_spaces:
        raise TokenizerFormatError(f"{path} treats spaces in a way that is not supported; give a tokenizer.json")
    tokenizer = Tokenizer(_bpe(model) if model.model_type == BPE else _unigram(model))
    splits: list[Any] = []
    if model.model_type == UNIGRAM and model.byte_fallback:
        splits.append(pre_tokenizers.Split(_BYTE_LOOKALIKE, "merged_with_previous"))
    first_only = config.get("legacy") is False and model.dummy_prefix
    steps = _normalizers(model, prepend=model.dummy_prefix and not first_only)
    tokenizer.normalizer = normalizers.Sequence(steps)
    if first_only:
        splits.insert(0, pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False))
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.dummy_prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(_added(model.pieces, (UNKNOWN, CONTROL), special=True))
    tokenizer.add_tokens(_added(model.pieces, (USER_DEFINED,), special=False))
    return tokenizer


def _normalizers(model: SentencePieceModel, *, prepend: bool) -> list[Any]:
    steps: list[Any] = []
    if model.charsmap:
        # The library looks up whole graphemes, so it misses letters of several characters in the table (Hangul).
        steps += [normalizers.NFC(), normalizers.Precompiled(model.charsmap)]
    if model.remove_extra_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if prepend:
        steps.append(normalizers.Prepend(_SPACE))
    return [*steps, normalizers.Replace(" ", _SPACE)]


def _added(pieces: Sequence[Piece], kinds: tuple[int, ...], *, special: bool) -> list[AddedToken]:
    return [AddedToken(piece.text, special=special, normalized=False) for piece in pieces if piece.kind in kinds]


def _unknown(pieces: Sequence[Piece]) -> int | None:
    return next((index for index, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)


def _unigram(model: SentencePieceModel) -> models.Unigram:
    vocabulary = [(piece.text, piece.score) for piece in model.pieces]
    return models.Unigram(vocabulary, unk_id=_unknown(model.pieces), byte_fallback=model.byte_fallback)


def _bpe(model: SentencePieceModel) -> models.BPE:
    """SentencePiece merges the pair whose piece has the best score: all splits of pieces are merges, in that order."""
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    apart = {piece.text for piece in model.pieces if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED)}
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece in model.pieces:
        if piece.text in apart:
            continue
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in ids and right in ids and left not in apart and right not in apart:
                merges.append((-piece.score, ids[left], ids[right], (left, right)))
    unknown = _unknown(model.pieces)
    return models.BPE(
        ids,
        [pair for *_, pair in sorted(merges)],
        unk_token=None if unknown is None else model.pieces[unknown].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )
