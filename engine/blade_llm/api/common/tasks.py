"""The task of a server: text (and embeddings besides), embeddings alone, or scores alone.

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

_GENERATING: Final = (paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES, paths.MESSAGES)

_SCORING: Final = (paths.SCORE, paths.SCORE_BARE, paths.RERANK, paths.RERANK_BARE, paths.RERANK_V2)
_SERVES: Final[dict[Task, str]] = {
    "generate": "generates text and embeddings (--task generate); use a server of a cross-encoder (--task score)",
    "embed": f"is for embeddings alone (--task embed); use {paths.EMBEDDINGS}, or a server that has another task",
    "score": f"is for scores alone (--task score); use {paths.SCORE} or {paths.RERANK}, or a server that has another "
    "task",
}


def is_served(path: str, task: Task) -> bool:
    """Whether a server for ``task`` serves ``path``."""
    if any(path == each or path.startswith(f"{each}/") for each in _GENERATING):
        return task == "generate"
    if path == paths.EMBEDDINGS:
        return task != "score"
    return task == "score" or path not in _SCORING


async def refuse(context: ServerContext, request: Request) -> NoReturn:
    """The handler of a route that is not served. Raises :class:`ApiError` 404."""
    message = f"{request.url.path} is not served: this server {_SERVES[context.model.task]}"
    raise ApiError(404, message, kind="not_found_error", code="task_not_served")
