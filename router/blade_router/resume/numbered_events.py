"""Events of ``/v1/responses``, which are numbered."""

import msgspec


class Numbered(msgspec.Struct):
    """The number of an event."""

    sequence_number: int = -1


class ErrorEvent(msgspec.Struct, tag="error", kw_only=True):
    """OpenAI's event for a stream of a response that fails."""

    code: str
    message: str
    param: None = None
    sequence_number: int
