"""SentencePiece's ``ModelProto``: the few fields that a conversion needs, read from the protobuf wire format.

Field numbers are those of ``sentencepiece_model.proto`` (google/sentencepiece).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

UNIGRAM: Final = 1
BPE: Final = 2
NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
BYTE: Final = 6


class Piece(NamedTuple):
    """One entry of the vocabulary; its id is its position."""

    text: str
    score: float
    kind: int


@dataclass(slots=True)
class SentencePieceModel:
    """What a tokenizer is made of."""

    pieces: list[Piece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    space_as_suffix: bool = False
    charsmap: bytes = b""
    """A compiled normalization table; empty: text stays as it is."""
    dummy_prefix: bool = True
    """Texts get a first space."""
    remove_extra_spaces: bool = True
    escape_spaces: bool = True


def read_model(data: bytes) -> SentencePieceModel:
    """Raises ``ValueError`` for what is no such message."""
    model = SentencePieceModel([])
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            model.pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
            model.model_type = _int(trainer.get(3, UNIGRAM))
            model.space_as_suffix = bool(_int(trainer.get(24, 0)))
            model.byte_fallback = bool(_int(trainer.get(35, 0)))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(_fields(value))
            charsmap = normalizer.get(2, b"")
            model.charsmap = charsmap if isinstance(charsmap, bytes) else b""
            model.dummy_prefix = bool(_int(normalizer.get(3, 1)))
            model.remove_extra_spaces = bool(_int(normalizer.get(4, 1)))
            model.escape_spaces = bool(_int(normalizer.get(5, 1)))
    if not model.pieces:
        raise ValueError("it holds no pieces")
    return model


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score = fields.get(1, b""), fields.get(2, 0.0)
    assert isinstance(text, bytes)
    return Piece(text.decode(), float(score) if not isinstance(score, bytes) else 0.0, _int(fields.get(3, NORMAL)))


def _int(value: int | float | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number is no number")
    return int(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """(field number, value): a number, or the bytes of a text or message. Raises ``ValueError``."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                value, position = _varint(data, position)
                yield number, value
            case 1 | 5:
                size = 8 if kind == 1 else 4
                _require(data, position, size)
                (found,) = struct.unpack_from("<d" if kind == 1 else "<f", data, position)
                position += size
                yield number, found
            case 2:
                size, position = _varint(data, position)
                _require(data, position, size)
                yield number, data[position : position + size]
                position += size
            case _:
                raise ValueError("it is no protobuf message")
        if number == 0:
            raise ValueError("it is no protobuf message")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        _require(data, position, 1)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("it is no protobuf message")


def _require(data: bytes, position: int, size: int) -> None:
    if position + size > len(data):
        raise ValueError("it is cut short")
