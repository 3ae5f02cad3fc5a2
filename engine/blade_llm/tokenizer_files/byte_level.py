"""The byte-level BPE alphabet: how GPT-2-style tokenizers write raw bytes as printable characters.

Qwen2 and Llama 3 tokens are byte strings in this disguise. Undoing it once per token id is what lets the incremental
detokenizer work on bytes instead of decoding a window of tokens again for each new one.
"""

from __future__ import annotations

from typing import Final


def _alphabet() -> dict[str, int]:
    """Character → byte. Printable Latin-1 bytes stand for themselves, the others for 256, 257, … in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (byte for byte in range(256) if byte not in set(printable))
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + offset): byte for offset, byte in enumerate(hidden)})
    return table


CHARACTER_TO_BYTE: Final = _alphabet()
BYTE_TO_CHARACTER: Final = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def token_to_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; an added token with other characters stands for its own UTF-8."""
    try:
        return bytes([CHARACTER_TO_BYTE[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def bytes_to_token(data: bytes) -> str:
    """How a byte-level vocabulary spells ``data``."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in data)
