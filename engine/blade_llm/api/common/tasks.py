"""The task of a server: text (and embeddings besides), or embeddings alone.

A service of embeddings that also served chats would do so with a model that cannot, so the routes that generate are
left out of its OpenAPI document, and say why when they are called.
"""

from __future__ import annotations

from typing import Final, NoReturn

from starlette.requests import Request

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError
from blade_llm.config import Task
from blade_protocol import paths

_GENERATING: Final = (paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES)


def is_served(path: str, task: Task) -> bool:
    """Whether a server for ``task`` serves ``path``."""
    return task == "generate" or not any(path == each or path.startswith(f"{each}/") for each in _GENERATING)


async def refuse(context: ServerContext, request: Request) -> NoReturn:
    """The handler of a route that is not served. Raises :class:`ApiError` 404."""
    message = (
        f"{request.url.path} is not served: this server is for embeddings alone (--task {context.model.task}); "
        f"use {paths.EMBEDDINGS}, or a server that generates text"
    )
    raise ApiError(404, message, kind="not_found_error", code="task_not_served")
