"""The context of one API-server process: what every route needs, made once at start-up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from blade_llm.api.common.comments import StreamComments
from blade_llm.api.common.errors import draining, engine_dead, model_not_found
from blade_llm.api.common.limits import MAX_BODY_BYTES
from blade_llm.api.common.response_store import ResponseStore
from blade_llm.api.common.response_writer import ResponseWriter
from blade_llm.api.common.served_model import ServedModel
from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.images.reader import ImageReader
from blade_llm.api.images.serving import NoImages
from blade_llm.api.metrics.names import Aliases
from blade_llm.api.metrics.requests import ServerMetrics
from blade_llm.api.telemetry.payload_log import PayloadLog
from blade_llm.api.telemetry.tracing import RequestTracer
from blade_llm.engine.client import EngineClient
from blade_llm.sampling.guided.validation import Validator
from blade_llm.text.request_templates import RequestTemplates
from blade_protocol.state import EngineState


@dataclass
class ServerContext:
    """Engine client, model and state of one API-server process."""

    client: EngineClient
    model: ServedModel
    max_model_len: int
    shared_stats: SharedStats
    """Numbers shared with the server's other API-server processes."""
    process_index: int = 0
    """Number of this process; its row of the shared stats."""
    live_timeout: float = 60.0
    """``/live`` fails after this many seconds with work and without progress."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when endless streams have to end."""
    templates: RequestTemplates = field(default_factory=RequestTemplates)
    """Renders the chat templates that requests bring."""
    hidden_size: int = 0
    """Numbers in an embedding; 0: not known."""
    max_body_bytes: int = MAX_BODY_BYTES
    """Size limit of a request's body."""
    strict_fields: bool = False
    """Refuse requests with a field that nobody knows."""
    metric_aliases: Aliases = "none"
    """Whose metric names are exposed beside this server's own."""
    structures: Validator = field(default_factory=Validator)
    """Checks the schemas, expressions and grammars that requests bring."""
    comments: StreamComments = field(default_factory=StreamComments)
    """Keep streams alive that have to wait."""
    responses: ResponseStore = field(default_factory=ResponseStore)
    """Responses that clients may come back to."""
    response_writer: ResponseWriter = field(init=False)
    """Keeps them."""
    payloads: PayloadLog | None = None
    """Logs prompts and outputs; None: nothing of them is kept."""
    tracer: RequestTracer | None = None
    """Traces requests; None: tracing is off."""
    images: ImageReader | NoImages = field(default_factory=NoImages)
    """Reads the images of requests, or says why there may be none."""
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: ServerMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.structures.closes_objects = not self.model.open_schemas
        counters = self.shared_stats.counters
        self.metrics = ServerMetrics(
            lambda: self.state, counters[self.process_index], counters, self.model.names[0], self.metric_aliases
        )
        if isinstance(self.images, ImageReader):
            self.images.observe = self.metrics.observe_images
        self.response_writer = ResponseWriter(self.responses, self.metrics.count_unkept)

    @property
    def state(self) -> EngineState | None:
        """The engine's last state."""
        return self.client.state

    @property
    def draining(self) -> bool:
        """Whether all API-server processes refuse new requests."""
        return self.shared_stats.draining

    @property
    def healthy(self) -> bool:
        """Whether a new request would be served."""
        return self.client.alive and not self.draining

    @property
    def stalled(self) -> bool:
        """Whether work is present and the engine has sent nothing for too long."""
        return self.shared_stats.stalled(self.live_timeout)

    async def close(self) -> None:
        """End the processes and threads that render requests' templates, validate their structures, read their images
        and keep responses."""
        if isinstance(self.images, ImageReader):
            await self.images.close()
        self.structures.close()
        self.response_writer.close()
        await self.templates.close()
        writers = (self.payloads, None if self.tracer is None else self.tracer.export)  # each takes its time to end
        await asyncio.gather(*(asyncio.to_thread(each.close) for each in writers if each is not None))

    def set_draining(self, value: bool, standby: bool = False) -> None:
        """Refuse new requests, or accept them again unless the server shuts down.

        ``standby``: give back the memory of the KV cache once no request is left.
        """
        self.shared_stats.set_draining(value)
        self.client.set_draining(self.draining, standby and self.draining)

    def require_service(self) -> None:
        """Raise :class:`ApiError` 503 when no new request can be served."""
        if not self.client.alive:
            raise engine_dead(self.client.failure)
        if self.draining:
            raise draining()

    def adapter_of(self, name: str | None) -> str:
        """The LoRA adapter that a request's ``model`` names; empty for the base model."""
        return "" if not name or name in self.model.aliases or name in self.model.names else name

    def adapter_digest(self, name: str | None) -> str | None:
        """Of the content of that adapter, in hexadecimal: empty for the base model, None for one that was not read
        yet."""
        adapter, state = self.adapter_of(name), self.state
        if not adapter:
            return ""
        if state is None or adapter not in state.adapters:
            return None
        return state.adapter_digests[state.adapters.index(adapter)] or None

    def resolve_model(self, name: str | None) -> str:
        """The name that a response carries for a request's ``model``. Raises :class:`ApiError` 404."""
        if not name or name in self.model.aliases:
            return self.model.names[0]
        if name in self.model.names or self.model.adapters:  # the engine knows adapters, also those of this moment
            return name
        raise model_not_found(name, ", ".join(self.model.names))
