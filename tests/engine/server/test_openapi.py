"""What is served is what ``/openapi.json`` says: requests made from the document, good and bad ones, by schemathesis.

None is a 5xx, none takes for ever, each has a status, a content type and a shape that the document names, and bad
requests are refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from engine_support.server_process import ServerProcess, running_server
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
BODIES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses/input_tokens", "/v1/embeddings", "/tokenize", "/detokenize"),
)
PLAIN = ("/v1/models", "/health", "/ready", "/live", "/metrics", "/metric", "/version")
SECONDS = 60.0


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    """A server of its own: the requests may be long, so its context is short."""
    folder = tmp_path_factory.mktemp("documented")
    flags = ("--max_num_seqs", "128", "--max_model_len", "64")
    with running_server(folder, text_model, *flags, engine="unpaced") as server:
        yield server


def _schema(server: ServerProcess) -> Any:
    return schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())


def _fuzz(server: ServerProcess, path: str, mode: GenerationMode, examples: int) -> Counter[int]:
    """Statuses of so many requests."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_schema(server)[path]["POST"].as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=SECONDS)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    run()
    return statuses


@pytest.mark.parametrize("path", BODIES)
def test_good_requests(documented: ServerProcess, path: str) -> None:
    statuses = _fuzz(documented, path, GenerationMode.POSITIVE, 50)
    assert statuses[200] > 0.05 * statuses.total(), "fields that contradict each other, and ranges the document omits"


@pytest.mark.parametrize("path", BODIES)
def test_bad_requests(documented: ServerProcess, path: str) -> None:
    statuses = _fuzz(documented, path, GenerationMode.NEGATIVE, 50)
    assert set(statuses) <= {400, 404, 415}


def test_routes_without_a_body(documented: ServerProcess) -> None:
    schema = _schema(documented)
    for path in PLAIN:
        case = schema[path]["GET"].Case()
        case.validate_response(case.call(base_url=documented.url), checks=CHECKS)
    for name, status in (("tiny-chat", 200), ("another", 404)):
        case = schema["/v1/models/{model}"]["GET"].Case(path_parameters={"model": name})
        response = case.call(base_url=documented.url)
        assert response.status_code == status
        case.validate_response(response, checks=CHECKS)


def test_the_document_names_every_route_and_field(documented: ServerProcess) -> None:
    document = httpx.get(f"{documented.url}/openapi.json").json()
    assert {*BODIES, *PLAIN} < set(document["paths"])
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "user", "audio", "top_logprobs", "logit_bias"} < set(chat)
    assert document["components"]["schemas"]["CompletionRequest"]["additionalProperties"] is True
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert named <= set(document["components"]["schemas"])
    calls = document["components"]["schemas"]["ChatMessage"]["properties"]["tool_calls"]["items"]
    assert [each["$ref"].rpartition("/")[2] for each in calls["anyOf"]] == ["ToolCall", "CustomToolCall"]
    for body in ("MessagesRequest", "CountTokensRequest"):  # whose choice is an object always
        choice = document["components"]["schemas"][body]["properties"]["tool_choice"]
        assert {each.get("$ref", each.get("type")) for each in choice["anyOf"]} == {
            "#/components/schemas/ToolChoice",
            "null",
        }
    assert httpx.get(f"{documented.url}/docs").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_fifty_thousand_requests(documented: ServerProcess) -> None:
    """The server is as it was before: nothing runs, and no process has grown."""
    pids = (documented.process.pid, documented.engine_pid)
    for path in BODIES:
        _fuzz(documented, path, GenerationMode.POSITIVE, 100)
    before = [_anonymous_bytes(pid) for pid in pids]
    for path in BODIES:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _fuzz(documented, path, mode, 5000)
    state = documented.wait_idle()
    assert state["kv_blocks_free"] == state["kv_blocks_total"]
    assert httpx.get(f"{documented.url}/health").status_code == 200
    after = [_anonymous_bytes(pid) for pid in pids]
    assert all(now < 1.2 * then + 50e6 for then, now in zip(before, after, strict=True)), (before, after)


def _anonymous_bytes(pid: int) -> int:
    """Memory a process has written to. (Of what it has mapped, kernels drop and read again what is not used.)"""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return sum(int(kib) for kib in re.findall(r"(?:RssAnon|VmSwap):\s*(\d+) kB", status)) << 10
