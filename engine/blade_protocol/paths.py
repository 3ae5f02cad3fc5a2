"""HTTP paths of the public and the internal port."""

from typing import Final

CHAT_COMPLETIONS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = "/v1/embeddings"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
MODELS: Final = "/v1/models"

HEALTH: Final = "/health"
"""200 only when the process can serve a request now."""
LIVE: Final = "/live"
"""503 only when the engine loop had work and made no progress for too long."""
METRICS: Final = "/metrics"
METRIC: Final = "/metric"
"""The same, under BladeLLM's name."""
VERSION: Final = "/version"
OPENAPI: Final = "/openapi.json"
DOCS: Final = "/docs"

INTERNAL_STATE: Final = "/internal/state"
INTERNAL_EVENTS: Final = "/internal/events"
INTERNAL_DRAIN: Final = "/internal/drain"
INTERNAL_FETCH: Final = "/internal/fetch"
"""Of the container that fetches the model, while it does."""
