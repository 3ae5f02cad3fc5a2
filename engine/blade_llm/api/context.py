"""What every route of one front process needs, made once at start-up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from blade_llm.api.board import Board
from blade_llm.api.errors import ApiError, draining, engine_dead
from blade_llm.api.metrics import ServerMetrics
from blade_llm.api.served_model import ServedModel
from blade_llm.engine.client import EngineClient
from blade_llm.sampling.guided.validation import Validator
from blade_llm.text.request_templates import RequestTemplates
from blade_protocol.state import EngineState


@dataclass
class ServerContext:
    client: EngineClient
    model: ServedModel
    max_model_len: int
    board: Board
    """Shared with the server's other fronts."""
    front: int = 0
    """Which row of it is ours."""
    live_timeout: float = 60.0
    """``/live`` fails after this many seconds with work and without progress."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when endless streams shall end."""
    templates: RequestTemplates = field(default_factory=RequestTemplates)
    """Renders the chat templates that requests bring."""
    hidden_size: int = 0
    """Numbers in an embedding; 0: not known."""
    structures: Validator = field(default_factory=Validator)
    """Says which schemas, expressions and grammars answers can be held to."""
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: ServerMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics(lambda: self.state, self.board.counters[self.front], self.board.counters)

    @property
    def state(self) -> EngineState | None:
        """The engine's last state."""
        return self.client.state

    @property
    def draining(self) -> bool:
        """New requests are refused, by all fronts."""
        return self.board.draining

    @property
    def healthy(self) -> bool:
        """Whether a new request would be served."""
        return self.client.alive and not self.draining

    @property
    def stalled(self) -> bool:
        """Work is present and the engine has said nothing for too long."""
        return self.board.stalled(self.live_timeout)

    async def close(self) -> None:
        """End the processes and threads that looked at requests' templates and structures."""
        self.structures.close()
        await self.templates.close()

    def set_draining(self, value: bool) -> None:
        """Refuse new requests, or take them again; that is not taken back once the server ends."""
        self.board.set_draining(value)
        self.client.set_draining(self.draining)

    def require_service(self) -> None:
        """Raise :class:`ApiError` 503 when no new request can be served."""
        if not self.client.alive:
            raise engine_dead(self.client.death)
        if self.draining:
            raise draining()

    def resolve_model(self, name: str | None) -> str:
        """The name an answer carries for a request's ``model``. Raises :class:`ApiError` 404."""
        if not name or name in self.model.aliases:
            return self.model.names[0]
        if name in self.model.names:
            return name
        raise ApiError(
            404,
            f"model {name!r} does not exist; this server has {', '.join(self.model.names)}",
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )
