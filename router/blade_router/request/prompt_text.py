"""The text of a prompt, cut into blocks and hashed, so that equal beginnings of prompts can be recognised.

The text is what a chat template would put together: tools, then each message's role and content. Content is taken as
it stands in the JSON, without unescaping it: of a 64 KB prompt decoding costs 20 us when it is ASCII and 110 us when it
is not, and hashing it all only 40 us. Clients that lay out their JSON differently still match; only one that writes
``\\u00e9`` and one that writes ``é`` do not. Images enter by the digest of their URL or content, and count
as many blocks as they are expected to take tokens; other large parts enter by their digest.

However large a body is, of its text and of its parts the first ones are read, and the rest counts by its size only.
"""

import zlib
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from blade_protocol.anthropic import BILLING_HEADER
from blade_router.request.abridge import MAX_TEXT, Abridged, abridge_at_once
from blade_router.request.block_hashes import BLOCK as BLOCK
from blade_router.request.block_hashes import hash_blocks, hash_with_images
from blade_router.request.fields import RoutingFields, given
from blade_router.request.media import IMAGE_TOKENS
from blade_router.request.message import ABSENT, Message, Part, Picture
from blade_router.request.parse import READ_AT_ONCE, is_list

MAX_BLOCKS = MAX_TEXT // BLOCK
"""Blocks at the start of a prompt that are hashed; a prompt with so many may have more."""
MAX_PARTS = 2048
"""Messages, their parts, and items of a prompt that are read one by one."""
BYTES_PER_TOKEN = 4
"""A guess, good enough to compare prompts with."""
IMAGE_BLOCKS = IMAGE_TOKENS * BYTES_PER_TOKEN // BLOCK
"""Blocks that an image counts."""
DIGEST_BYTES = 16
"""Bytes of the digest that stands in the text for an image, or for another large part."""
_IMAGE_KINDS = frozenset((b'"image"', b'"image_url"', b'"input_image"', b'"video"', b'"video_url"', b'"input_video"'))
_DEFAULT_DETAILS = (b'"auto"', b"null")
_SEPARATOR = b"\n"
"""Cannot be part of a JSON string, so two different lists of messages never give the same text."""
_LARGE_LIST = READ_AT_ONCE
"""Bytes of a list from which on no more than its first ``MAX_PARTS`` elements become objects."""
_LARGE_PART = 1024
_BILLING = b'"%b' % BILLING_HEADER.encode()
_MESSAGE_BYTES = 26
"""Bytes of a message beside role and content: names, brackets, commas."""


_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_first_elements = msgspec.json.Decoder(
    msgspec.defstruct(
        "FirstElements",
        [(f"element_{at}", msgspec.Raw, ABSENT) for at in range(MAX_PARTS)],
        array_like=True,
        frozen=True,
    )
).decode
"""Those beyond are skipped."""
_part = msgspec.json.Decoder(Part).decode
_picture = msgspec.json.Decoder(Picture).decode
_message = msgspec.json.Decoder(Message).decode


class Prompt:
    """The prompt of one request. Making it puts the text together; hashes are computed when they are first needed.

    Args:
        abridged: what the fields were read from, where that is not the whole body.
    """

    __slots__ = ("_chain", "_images", "_seed", "blocks", "size", "text")

    def __init__(self, fields: RoutingFields, abridged: Abridged | None = None) -> None:
        chat = fields.chat
        text = _plain_text(chat) if chat is not None and not fields.tools and not fields.system else None
        full = False
        images: Sequence[int] = ()
        if text is None:
            pieces = _Pieces()
            pieces.add_prompt(fields)
            text = pieces.join()
            full = pieces.full
            images = pieces.images
        self.text = text
        self._images = images
        """Positions in the text behind the digests of images."""
        self.size = len(text)
        """Bytes; of all of it, where the text is only its beginning."""
        if abridged is not None:
            self.size += abridged.omitted_bytes
        elif full:
            self.size = max(self.size, _raw_size(fields))
        if images:
            self.size += len(images) * (IMAGE_BLOCKS * BLOCK - DIGEST_BYTES)
        self.blocks = self.size / BLOCK
        """The size in blocks; what is behind the last full one counts as a part of one."""
        self._seed = (fields.model, fields.cache_salt)
        self._chain: list[int] | None = None

    @property
    def chain(self) -> list[int]:
        """A number for each full block, at most ``MAX_BLOCKS``: a hash of it, of all before it, and of what else keeps
        caches apart (the adapter's name and the salt). The same in processes with the same ``PYTHONHASHSEED``."""
        if self._chain is None:
            seed = hash((self._seed[0] or "", self._seed[1] or ""))
            if self._images:
                self._chain = hash_with_images(self.text, self._images, IMAGE_BLOCKS, seed, MAX_BLOCKS)
            else:
                self._chain = hash_blocks(self.text, seed)
        return self._chain

    @property
    def tokens(self) -> int:
        """A guess at the size in tokens."""
        return self.size // BYTES_PER_TOKEN

    def key(self, blocks: int) -> int:
        """32 bits that stand for the first blocks, the same in every process."""
        model, salt = self._seed
        size = self._bytes_of(blocks) if self._images else blocks * BLOCK
        return zlib.crc32(self.text[:size], zlib.crc32(f"{model}\n{salt}".encode()))

    def _bytes_of(self, blocks: int) -> int:
        """Bytes of the text that the first blocks of the chain are of, at least."""
        at = 0
        for end in self._images:
            before = (end - at) // BLOCK
            if blocks <= before:
                break
            blocks -= before + IMAGE_BLOCKS
            at = end
            if blocks <= 0:
                return end
        return at + blocks * BLOCK


class _Pieces:
    """The parts of a request that end up in the model's context, in the order templates have it."""

    __slots__ = ("_left", "_parts", "_pieces", "full", "images")

    def __init__(self) -> None:
        self._pieces: list[bytes | msgspec.Raw | memoryview] = []
        self._left = MAX_TEXT
        """Bytes there is still room for."""
        self._parts = MAX_PARTS
        """Parts that may still be read one by one."""
        self.full = False
        """There is more than was taken."""
        self.images: list[int] = []
        """Positions behind the digests of images."""

    def join(self) -> bytes:
        """The text."""
        return _SEPARATOR.join(self._pieces)

    def add_prompt(self, fields: RoutingFields) -> None:
        if fields.tools:
            self._add(fields.tools)
        if given(fields.system):
            self._add_system(fields.system)
        chat = fields.chat
        if chat is not None:
            self._add_chat(chat)
        elif given(fields.messages):
            self._add_list(fields.messages)
        elif fields.prompt:
            self._add(fields.prompt)
        elif fields.input:
            self._add(fields.instructions)
            self._add_list(fields.input)

    def _add(self, piece: bytes | msgspec.Raw) -> None:
        left = self._left - len(piece) - 1
        if left > 0:
            self._pieces.append(piece)
            self._left = left
        else:
            if self._left:
                self._pieces.append(memoryview(piece)[: self._left])
            self._left = 0
            self.full = True

    def _add_chat(self, messages: list[Message]) -> None:
        """Add messages that have a text or calls of tools, as many as may be read."""
        if len(messages) >= self._parts:
            self.full = True
            messages = messages[: self._parts]
        self._parts -= len(messages)
        if self._left:
            for message in messages:
                self._add_read(message)

    def _add_list(self, values: msgspec.Raw) -> None:
        """Messages, or items of a response's input: tools' calls and outputs, or for embeddings texts."""
        if not is_list(values):
            self._add(values)
            return
        for value in self._some(values):
            self._add_message(value)

    def _some(self, values: msgspec.Raw) -> list[msgspec.Raw]:
        """The elements of a list, as many as may be read."""
        if len(values) <= _LARGE_LIST:
            found = _elements(values)
        else:
            found = [value for value in msgspec.structs.astuple(_first_elements(values)) if value]
        if len(found) >= self._parts:
            self.full = True
            del found[self._parts :]
        self._parts -= len(found)
        return found if self._left else []

    def _add_message(self, value: msgspec.Raw) -> None:
        try:
            message = _message(value)
        except msgspec.ValidationError:
            self._add(value)
            return
        if not message.content and not message.tool_calls:
            self._add(value)
            return
        self._add_read(message)

    def _add_read(self, message: Message) -> None:
        self._add(message.role)
        if message.content:
            self._add_content(message.content)
        if message.tool_calls:
            self._add(message.tool_calls)

    def _add_system(self, content: msgspec.Raw) -> None:
        """Add what stands before the messages of ``/v1/messages``, without the blocks that engines leave out."""
        for block in self._some(content) if is_list(content) else [content]:
            if not _is_billing(block):
                self._add_part(block)

    def _add_content(self, content: msgspec.Raw, *, nested: bool = False) -> None:
        if is_list(content):
            for part in self._some(content):
                self._add_part(part, nested=nested)
        else:
            self._add(content)

    def _add_part(self, part: msgspec.Raw, *, nested: bool = False) -> None:
        """A text counts like a message's whole content, and so do a tool's call and its result, whose
        ``cache_control`` comes and goes; an image, of which the same is true, by the digest of its content, and
        anything else by its own.

        ``nested``: it is in a tool's result, in which there are texts. Whatever else is there is not looked into:
        each level would be read once more.
        """
        try:
            found = _part(part)
        except msgspec.ValidationError:
            self._add(part)
            return
        text = found.text if given(found.text) else found.thinking
        if given(text):
            self._add(text)
            return
        if bytes(found.type) in _IMAGE_KINDS or given(found.image_url) or given(found.video_url):
            self._add(_image_digest(part))
            if self._left:
                self.images.append(MAX_TEXT - self._left - len(_SEPARATOR))
            return
        if not nested and (found.input or found.content):
            for piece in (found.name, found.input):
                if piece:
                    self._add(piece)
            if found.content:
                self._add_content(found.content, nested=True)
            return
        self._add(blake2b(_abridged(part), digest_size=DIGEST_BYTES).digest())


def _abridged(part: msgspec.Raw) -> bytes:
    """A part as it is in a body that was abridged as a whole."""
    content = bytes(part)
    return abridge_at_once(content).json if len(content) > _LARGE_PART else content


def _image_digest(part: msgspec.Raw) -> bytes:
    """The digest of an image, or a video: of its URL or content, and of the detail in which it is to be seen."""
    content = _abridged(part)
    read = _part(content)
    fields = (read.image_url, read.video_url, read.video, read.source)
    found = next((field for field in fields if given(field)), ABSENT)
    what = bytes(found) or content
    detail = bytes(read.detail)
    if found and memoryview(found)[0] != 0x22:
        try:
            picture = _picture(found)
        except msgspec.ValidationError:
            pass  # the engine's to refuse
        else:
            what = bytes(picture.url or picture.data or found)
            detail = bytes(picture.detail) or detail
    digest = blake2b(what, digest_size=DIGEST_BYTES)
    if detail and detail not in _DEFAULT_DETAILS:
        digest.update(_SEPARATOR)
        digest.update(detail)
    return digest.digest()


def _plain_text(messages: list[Message]) -> bytes | None:
    """The text of messages that are few, and nothing but text, as most are; None: they are not."""
    if len(messages) >= MAX_PARTS:
        return None
    pieces: list[msgspec.Raw] = []
    for message in messages:
        content = message.content
        if message.tool_calls or is_list(content):
            return None
        pieces.append(message.role)
        pieces.append(content)
    return _SEPARATOR.join(pieces)


def expected_size(fields: RoutingFields) -> int:
    """Bytes that the text of a prompt should take, without putting it together; rather too many."""
    return min(_raw_size(fields) + len(fields.instructions), MAX_TEXT)


def _raw_size(fields: RoutingFields) -> int:
    """Bytes of the JSON that the text is taken from."""
    size = len(fields.tools) + len(fields.system) + len(fields.messages) + len(fields.prompt) + len(fields.input)
    for message in fields.chat or ():
        size += len(message.role) + len(message.content) + len(message.tool_calls) + _MESSAGE_BYTES
    return size


def _is_billing(block: msgspec.Raw) -> bool:
    """It is the block, or the text, that a coding agent changes with every request, and engines leave out."""
    try:
        text = _part(block).text
    except msgspec.ValidationError:
        text = block
    return bytes(memoryview(text)[: len(_BILLING)]) == _BILLING
