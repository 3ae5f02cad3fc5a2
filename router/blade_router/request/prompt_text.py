"""The text of a prompt, cut into blocks and hashed, so that equal beginnings of prompts can be recognised.

The text is what a chat template would put together: tools, then each message's role and content. Content is taken as
it stands in the JSON, without unescaping it: of a 64 KB prompt decoding costs 20 us when it is ASCII and 110 us when it
is not, and hashing it all only 40 us. Clients that lay out their JSON differently still match; only one that writes
``\\u00e9`` and one that writes ``é`` do not. Images and other large parts enter by their digest.
"""

import struct
import zlib
from hashlib import blake2b

import msgspec

from blade_router.request.fields import Message, RoutingFields

BLOCK = 256
"""Bytes of text in a block."""
BYTES_PER_TOKEN = 4
"""A guess, good enough to compare prompts with."""
_SEPARATOR = b"\n"
"""Cannot be part of a JSON string, so two different lists of messages never give the same text."""


class _Part(msgspec.Struct, frozen=True):
    text: msgspec.Raw = msgspec.Raw(b"")


_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_part = msgspec.json.Decoder(_Part).decode
_message = msgspec.json.Decoder(Message).decode


class Prompt:
    """The prompt of one request. Making it puts the text together; hashes are computed when they are first needed."""

    __slots__ = ("_chain", "_seed", "blocks", "text")

    def __init__(self, fields: RoutingFields) -> None:
        self.text = prompt_text(fields)
        self.blocks = len(self.text) / BLOCK
        """The size in blocks; what is behind the last full one counts as a part of one."""
        self._seed = (fields.model, fields.cache_salt)
        self._chain: list[int] | None = None

    @property
    def chain(self) -> list[int]:
        """A number for each full block: a hash of it, of all before it, and of what else keeps caches apart (the
        adapter's name and the salt). Differs from process to process."""
        if self._chain is None:
            count = len(self.text) // BLOCK
            link = hash(self._seed)
            self._chain = [link := hash((link, block)) for block in struct.unpack_from("256s" * count, self.text)]
        return self._chain

    @property
    def tokens(self) -> int:
        """A guess at the size in tokens."""
        return len(self.text) // BYTES_PER_TOKEN

    def key(self, blocks: int) -> int:
        """32 bits that stand for the first blocks, the same in every process."""
        model, salt = self._seed
        return zlib.crc32(self.text[: blocks * BLOCK], zlib.crc32(f"{model}\n{salt}".encode()))


def prompt_text(fields: RoutingFields) -> bytes:
    """The parts of a request that end up in the model's context, in the order templates have it."""
    pieces: list[bytes | msgspec.Raw] = []
    if fields.tools:
        pieces.append(fields.tools)
    if fields.messages:
        for message in fields.messages:
            _add_message(message, pieces)
    elif fields.prompt:
        pieces.append(fields.prompt)
    elif fields.input:
        pieces.append(fields.instructions)
        if _is_list(fields.input):
            for item in _parts(fields.input):
                _add_item(item, pieces)
        else:
            pieces.append(fields.input)
    return _SEPARATOR.join(pieces)


def _add_message(message: Message, pieces: list[bytes | msgspec.Raw]) -> None:
    pieces.append(message.role.encode())
    content = message.content
    if content:
        if _is_list(content):
            for part in _parts(content):
                _add_part(part, pieces)
        else:
            pieces.append(content)
    if message.tool_calls:
        pieces.append(message.tool_calls)


def _add_part(part: msgspec.Raw, pieces: list[bytes | msgspec.Raw]) -> None:
    """A text counts like a message's whole content; anything else, like an image, by its digest."""
    try:
        text = _part(part).text
    except msgspec.ValidationError:
        text = part
    pieces.append(text or blake2b(part, digest_size=16).digest())


def _add_item(item: msgspec.Raw, pieces: list[bytes | msgspec.Raw]) -> None:
    """An item of a response's input: a message, a tool's call or output, or for embeddings a text."""
    try:
        message = _message(item)
    except msgspec.ValidationError:
        pieces.append(item)
        return
    if message.content:
        _add_message(message, pieces)
    else:
        pieces.append(item)


def _is_list(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[0] == 0x5B
