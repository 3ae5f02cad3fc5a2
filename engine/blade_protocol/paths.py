"""HTTP paths of the public port, an engine's internal port and a router's admin port."""

import re
from typing import Final

CHAT_COMPLETIONS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"
MESSAGES: Final = "/v1/messages"
"""Anthropic's chat API."""
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
EMBEDDINGS: Final = "/v1/embeddings"
SCORE: Final = "/v1/score"
SCORE_BARE: Final = "/score"
"""Alias of ``/v1/score``, as at vLLM."""
RERANK: Final = "/v1/rerank"
RERANK_BARE: Final = "/rerank"
"""Alias of ``/v1/rerank``, as at vLLM."""
RERANK_V2: Final = "/v2/rerank"
"""Alias of ``/v1/rerank``, as at vLLM: Cohere's path."""
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
TOKENIZER_INFO: Final = "/tokenizer_info"
"""vLLM's name; served with ``--enable_tokenizer_info_endpoint``."""
MODELS: Final = "/v1/models"
LOAD_ADAPTER: Final = "/v1/load_lora_adapter"
"""vLLM's name; served with ``--allow_runtime_lora_updating``."""
UNLOAD_ADAPTER: Final = "/v1/unload_lora_adapter"

HEALTH: Final = "/health"
"""200 only when the process can serve a request now."""
READY: Final = "/ready"
"""Alias of ``/health``."""
PING: Final = "/ping"
"""Alias of ``/health`` that SageMaker's load balancers know, with GET or POST."""
LOAD: Final = "/load"
"""vLLM's: how many requests are in hand; of a router on its admin port."""
LIVE: Final = "/live"
"""503 only when the engine loop had work and made no progress for too long."""
METRICS: Final = "/metrics"
METRIC: Final = "/metric"
"""Alias of ``/metrics``, BladeLLM's name for it."""
VERSION: Final = "/version"
OPENAPI: Final = "/openapi.json"
DOCS: Final = "/docs"

UI: Final = "/ui"
"""A router's web UI, on its public port."""
UI_STREAM: Final = "/ui/stream"
"""What the web UI shows, as server-sent events."""
STATUS: Final = "/status"
"""A router's state as JSON, on its admin port."""
DEBUG_ROUTE: Final = "/debug/route"
"""Explains where a router would send a request, on its admin port."""

INTERNAL_STATE: Final = "/internal/state"
INTERNAL_EVENTS: Final = "/internal/events"
INTERNAL_DRAIN: Final = "/internal/drain"
INTERNAL_FETCH: Final = "/internal/fetch"
"""Progress of the container that downloads the model."""
INTERNAL_KV: Final = "/internal/kv"
"""The digests of every block in the prefix cache, with the epoch and sequence number they belong to."""
INTERNAL_ADAPTERS: Final = "/internal/adapters"
"""The LoRA adapters of an engine."""
INTERNAL_LOAD_ADAPTER: Final = "/internal/adapters/load"
INTERNAL_UNLOAD_ADAPTER: Final = "/internal/adapters/unload"
INTERNAL_RESUME: Final = "/internal/resume"
"""Resume the stream of an engine that died."""
INTERNAL_SIGNALS: Final = "/internal/signals"
"""A router's signals for an autoscaler, on its admin port."""
INTERNAL_QUOTAS: Final = "/internal/quotas"
"""Between the replicas of a router: borrowing shares of limits; on the admin port."""
INTERNAL_SERVICE: Final = "/internal/service"
"""The operator's report of the service, for the web UI of a router; on its admin port."""
INTERNAL_REPLICA_SYNC: Final = "/internal/replica_sync"
"""Between the replicas of a router: what each has sent where; on the admin port."""

_ABSOLUTE: Final = re.compile(rb"https?://[^/?#@]+(?=[/?]|$)", re.IGNORECASE)
"""Scheme and authority of a target in absolute form, which every server has to take."""


def origin_form(target: bytes) -> bytes | None:
    """The path and query of a request target (RFC 9112 section 3.2), without scheme and host, whatever host a client
    sees here; None for what is neither a path nor an ``http`` URL."""
    if target.startswith(b"/"):
        return target
    found = _ABSOLUTE.match(target)
    if found is None:
        return None
    rest = target[found.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
