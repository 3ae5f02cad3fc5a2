"""The routes of an engine besides generating: health, models, load, tokens, with SGLang's and vLLM's responses."""

from __future__ import annotations

import json
from functools import cache

GENERATING = frozenset((b"/v1/chat/completions", b"/v1/completions", b"/generate"))
_MODEL = {"id": "mock", "object": "model", "created": 1, "owned_by": "mock", "max_model_len": 1 << 20}
_INFO = {"model_path": "mock", "served_model_name": "mock", "tokenizer_path": "", "is_generation": True, "dp_size": 1}
_LOAD = {
    "dp_rank": 0,
    "num_reqs": 0,
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_tokens": 0,
    "num_used_tokens": 0,
    "token_usage": 0.0,
    "max_total_num_tokens": 1 << 20,
}
_METRICS = (
    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage 0\n"
)
_RESPONSES: dict[bytes, object] = {
    b"/v1/models": {"object": "list", "data": [_MODEL]},
    b"/get_model_info": _INFO,
    b"/model_info": _INFO,
    b"/get_server_info": _INFO,
    b"/server_info": _INFO,
    b"/get_load": [_LOAD],
    b"/v1/loads": {"loads": [_LOAD], "aggregate": _LOAD},
    b"/version": {"version": "0.32.0"},
}


def response(status: int, body: bytes, extra: bytes = b"", kind: bytes = b"application/json") -> bytes:
    """A whole response; ``extra`` are further header lines."""
    head = b"HTTP/1.1 %d Mock\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, kind, extra, len(body)) + body


def respond(target: bytes, body: bytes) -> bytes:
    """The response to anything but a generation request."""
    path = target.partition(b"?")[0]
    if path == b"/tokenize":
        tokens = _tokens(body)
        return response(200, json.dumps({"tokens": tokens, "count": len(tokens), "max_model_len": 1 << 20}).encode())
    if path == b"/v1/chat/completions/render":  # too new for most engines; vllm-router then uses /tokenize
        return response(404, b"{}")
    return _fixed(path)


def _tokens(body: bytes) -> list[int]:
    """One for every four bytes, so that equal prefixes have equal tokens; of ASCII they fit into 31 bits."""
    return memoryview(body[: len(body) // 4 * 4]).cast("I").tolist()


@cache
def _fixed(path: bytes) -> bytes:
    if path == b"/metrics":
        return response(200, _METRICS.encode(), kind=b"text/plain")
    return response(200, json.dumps(_RESPONSES.get(path, {"status": "ok"})).encode())
