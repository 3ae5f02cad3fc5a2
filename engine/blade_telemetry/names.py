"""Names of attributes: OpenTelemetry's semantic conventions for HTTP and generative AI, and ours where they have none.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from typing import Final

from blade_protocol import paths

HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
CLIENT_ADDRESS: Final = "client.address"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"

REQUEST_ID: Final = "blade.request_id"
KEY: Final = "blade.key"
"""Name of the API key."""
ENDPOINT: Final = "blade.endpoint"
ROUTE_REASON: Final = "blade.route_reason"
ADAPTER: Final = "blade.adapter"

PROVIDER_NAME: Final = "bladellm"
CHAT: Final = "chat"

_OPERATIONS: Final = {
    paths.CHAT_COMPLETIONS: CHAT,
    paths.MESSAGES: CHAT,
    paths.RESPONSES: CHAT,
    paths.COMPLETIONS: "text_completion",
    paths.EMBEDDINGS: "embeddings",
}


def operation(path: str) -> str:
    """``gen_ai.operation.name`` of a request for this path; empty where the conventions have none."""
    return _OPERATIONS.get(path, "")
