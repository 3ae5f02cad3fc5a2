"""The messages of a conversation, as far as their text goes."""

import msgspec

ABSENT = msgspec.Raw(b"")
"""Of a field that is not there."""


class Message(msgspec.Struct, frozen=True):
    """One message."""

    role: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    text: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT
    name: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    """Of a block that calls a tool."""
    content: msgspec.Raw = ABSENT
    """Of a block with a tool's result."""
    type: msgspec.Raw = ABSENT
    image_url: msgspec.Raw = ABSENT
    video_url: msgspec.Raw = ABSENT
    video: msgspec.Raw = ABSENT
    """The frames of one, as URLs."""
    source: msgspec.Raw = ABSENT
    """Of a picture in ``/v1/messages``."""
    detail: msgspec.Raw = ABSENT


class Picture(msgspec.Struct, frozen=True):
    """Where the content of a picture or a video is."""

    url: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT
    """The content itself, in base64."""
    detail: msgspec.Raw = ABSENT


class ItemId(msgspec.Struct, frozen=True):
    """An item of a response's ``input``, as far as it may name another one."""

    type: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    role: msgspec.Raw = ABSENT
