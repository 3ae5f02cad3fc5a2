"""What complaints about a chat call its fields where another API's request was turned into it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from blade_llm.api.common.errors import ApiError

Place = tuple[int, ...]
"""Where a tool stands in the request's ``tools``; with a second number, where in the ``tools`` of that one."""
_TOOL: Final = re.compile(r"tools(?:\[(\d+)\]|\.(\d+)(?=\.))")


class FieldNames:
    """A chat's names → a request's.

    Args:
        names: of fields, as errors name them in ``param``.
        in_messages: those of them that are replaced in messages, too.
    """

    def __init__(self, names: Mapping[str, str], in_messages: Collection[str]) -> None:
        self._names = names
        self._any = re.compile(rf"\b({'|'.join(map(re.escape, in_messages))})\b")

    @contextlib.contextmanager
    def named(self, tools: Sequence[Place] = ()) -> Iterator[None]:
        """Errors raised inside name the request's fields. ``tools``: where the chat's stand in the request."""
        try:
            yield
        except ApiError as error:
            detail = error.detail
            message = _with_place(detail.message, tools)
            message = self._any.sub(lambda found: self._names[found[1]], message)
            param = None if detail.param is None else self._names.get(detail.param, detail.param)
            raise ApiError(
                error.status, message, kind=detail.type, param=param, code=detail.code, headers=error.headers
            ) from None

    def of_parameters(self, names: Mapping[str, str]) -> dict[str, str]:
        """:attr:`~blade_llm.api.generation.prompt.Prompt.field_names` with the request's fields."""
        return {thing: self._names.get(name, name) for thing, name in names.items()}


def _with_place(message: str, tools: Sequence[Place]) -> str:
    found = _TOOL.match(message)
    if found is None:
        return message
    index = int(found[1] or found[2])
    if index >= len(tools):
        return message
    place = [f"tools[{number}]" if found[1] else f"tools.{number}" for number in tools[index]]
    return ".".join(place) + message[found.end() :]
