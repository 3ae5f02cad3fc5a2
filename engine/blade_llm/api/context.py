"""What every route of one server needs, made once at start-up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from blade_llm.api.errors import ApiError, draining, engine_dead
from blade_llm.api.metrics import ServerMetrics
from blade_llm.api.requests import SamplingDefaults
from blade_llm.engine.client import EngineClient
from blade_llm.text.chat_template import ChatTemplate
from blade_llm.text.tokenizer import Tokenizer
from blade_protocol.state import EngineState


@dataclass
class ServerContext:
    client: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    served_names: tuple[str, ...]
    """Listed by ``/v1/models``; the first is the one answers carry."""
    vocab_size: int
    max_model_len: int
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    aliases: frozenset[str] = frozenset()
    """Further names requests may use (the path given to ``--model``)."""
    stall_seconds: float = 60.0
    """``/live`` fails after this long with work and without progress."""
    draining: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when endless streams shall end."""
    metrics: ServerMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics(lambda: self.state)

    @property
    def state(self) -> EngineState | None:
        """The engine's last state."""
        return self.client.state

    @property
    def healthy(self) -> bool:
        """Whether a new request would be served."""
        return self.client.alive and not self.draining

    @property
    def stalled(self) -> bool:
        """Work is present and the engine has said nothing for too long."""
        return self.client.num_open > 0 and time.monotonic() - self.client.last_progress > self.stall_seconds

    def set_draining(self, value: bool) -> None:
        self.draining = value
        self.client.set_draining(value)

    def require_service(self) -> None:
        """Raise :class:`ApiError` 503 when no new request can be served."""
        if not self.client.alive:
            raise engine_dead(self.client.death)
        if self.draining:
            raise draining()

    def resolve_model(self, name: str | None) -> str:
        """The name an answer carries for a request's ``model``. Raises :class:`ApiError` 404."""
        if name is None or name == "" or name in self.aliases:
            return self.served_names[0]
        if name in self.served_names:
            return name
        raise ApiError(
            404,
            f"model {name!r} does not exist; this server has {', '.join(self.served_names)}",
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )
