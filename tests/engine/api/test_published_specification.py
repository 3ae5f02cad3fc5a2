"""Requests that OpenAI's published specification allows, drawn by schemathesis: each is answered, or rightly refused.

``pytest -m soak tests/engine/api/test_published_specification.py`` sends 5,000, and 200 to an engine that computes; the
fast tests send a few hundred.
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
from engine_support.fake_engine import write_script
from engine_support.published.document import BODIES, READ, descriptions, fields_of, published, requests_of
from engine_support.published.reasons import FORBIDDEN, REASONS, fields_here, reason_of
from engine_support.published.served import served_only
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import write_tool_model
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode

MODEL = "tools"
FEW = {"/chat/completions": 60, "/responses": 60, "/completions": 45, "/embeddings": 15}
MANY = {"/chat/completions": 1050, "/responses": 900, "/completions": 350, "/embeddings": 150}
"""Requests to a path, of each kind: twice 2,450."""
READS = 200
_HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
_TOOL = {"type": "function", "function": {"name": "f"}}
_OTHER = {"type": "function", "function": {"name": "g"}}
_NO_REGEX = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}}
_NO_IMAGE = {"type": "input_image", "detail": "auto"}
RARE: list[tuple[str, dict[str, Any]]] = [
    ("/completions", {"prompt": "a", "suffix": "b", "echo": True}),
    ("/completions", {"prompt": "a", "n": 3, "best_of": 2}),
    ("/completions", {"prompt": "a", "best_of": 2, "stream": True}),
    ("/chat/completions", {**_HELLO, "tools": [_TOOL, _TOOL]}),
    ("/chat/completions", {**_HELLO, "tools": [_TOOL], "tool_choice": _OTHER}),
    (
        "/chat/completions",
        {
            **_HELLO,
            "tools": [_TOOL],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_OTHER]}},
        },
    ),
    ("/chat/completions", {**_HELLO, "tools": [{"type": "custom", "custom": {"name": "f", "format": _NO_REGEX}}]}),
    ("/responses", {"input": [{"role": "user", "content": [_NO_IMAGE]}]}),
    ("/responses", {"input": [{"role": "system", "content": [{**_NO_IMAGE, "image_url": "data:,"}]}]}),
]
"""Requests that are refused for reasons that drawn ones seldom meet."""
SECONDS = 120.0
_ENDS = {"response.completed", "response.incomplete"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return published()


@pytest.fixture(scope="module")
def requests(document: dict[str, Any]) -> dict[bool, Any]:
    """Schemas of requests by whether they are all to be served."""
    allowed = requests_of(document, MODEL)
    found = {False: schemathesis.openapi.from_dict(allowed), True: schemathesis.openapi.from_dict(served_only(allowed))}
    for schema in found.values():
        schema.config.max_stream_events = 1_000_000  # streams are read to their end
    return found


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that may be offered tools, that reasons or does not, and that needs no computing."""
    folder = tmp_path_factory.mktemp("published")
    model = write_tool_model(folder / MODEL)
    write_script(model, ("", ["<think>\nwhy\n</think>\n\nso", "plain text"]))
    with running_server(folder / "server", model, "--max_num_seqs", "256", engine="scripted") as server:
        yield server


def _ask(server: ServerProcess, schema: Any, path: str, examples: int, *, served: bool) -> Counter[Any]:
    """Send so many requests; how often they were refused for which reason, and under 200 how often they were served.

    Args:
        served: all have to be, but for what the specification forbids in words.
    """
    # An additional field may have the name of one that the schema does not know and we do, and any value.
    without = fields_here(f"/v1{path}") - fields_of(schema.raw_schema, path)
    found: Counter[Any] = Counter()
    wrong: list[Any] = []

    @settings(max_examples=examples, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=schema[path]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def run(case: Any) -> None:
        assume(not without & case.body.keys())
        response = case.call(base_url=f"{server.url}/v1", timeout=SECONDS)
        if response.status_code == 200:
            _check(path, response, stream=case.body.get("stream") is True)
            found[200] += 1
        else:
            error = response.json()["error"]
            reason = reason_of(f"/v1{path}", response.status_code, error)
            if reason is None or (served and reason not in FORBIDDEN):
                wrong.append((response.status_code, error, response.request.body))
            found[reason] += 1

    run()
    assert not wrong, "\n\n".join(map(str, wrong[:10]))
    return found


def _check(path: str, response: Any, *, stream: bool) -> None:
    """Whether an answer is whole."""
    if not stream:
        kinds = {"/chat/completions": "chat.completion", "/completions": "text_completion", "/embeddings": "list"}
        assert response.json()["object"] == kinds.get(path, "response")
        return
    assert response.headers["content-type"][0].startswith("text/event-stream")
    data = re.findall(r"^data: (.*)$", response.content.decode(), re.MULTILINE)
    if path == "/responses":
        assert json.loads(data[-1])["type"] in _ENDS
    else:
        assert data.pop() == "[DONE]"
    assert not [event for event in map(json.loads, data) if event.get("error") or event.get("type") == "error"]


def _idle(server: ServerProcess) -> None:
    """Nothing is left of the requests, and nothing went wrong inside."""
    state = server.wait_idle()
    assert state["kv_blocks_free"] == state["kv_blocks_total"]
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert "Traceback" not in server.output


def _read(server: ServerProcess, schema: Any, path: str, method: str, examples: int) -> Counter[Any]:
    """Requests without a body: every second one is for what is there."""
    found: Counter[Any] = Counter()

    @settings(max_examples=examples, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def run(case: Any) -> None:
        given_id = case.path_parameters
        if "response_id" in given_id and found.total() % 2:
            given_id["response_id"] = server.post("/v1/responses", input="hello", max_output_tokens=1).json()["id"]
        elif "model" in given_id and found.total() % 2:
            given_id["model"] = MODEL
        response = case.call(base_url=f"{server.url}/v1", timeout=SECONDS)
        if response.status_code == 200:
            assert response.json()["object"] in ("list", "model", "response")
            found[200] += 1
        else:
            reason = reason_of(f"/v1{path}", response.status_code, response.json()["error"])
            assert reason is not None, (response.status_code, response.text, case.path_parameters, case.query)
            found[reason] += 1

    run()
    return found


def _reads(server: ServerProcess, schema: Any, examples: int) -> Counter[Any]:
    operations = [*((path, "GET") for path in READ), (READ[0], "DELETE"), (f"{READ[0]}/cancel", "POST")]
    found = sum((_read(server, schema, *each, examples // len(operations)) for each in operations), Counter[Any]())
    assert found[200] > found.total() / 4
    return found


def _rare(server: ServerProcess) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for path, body in RARE:
        response = server.post(f"/v1{path}", **body)
        found[reason_of(f"/v1{path}", response.status_code, response.json()["error"])] += 1
    kept = server.post("/v1/responses", input="hello", max_output_tokens=1).json()["id"]
    for below in ("?stream=true", "/input_items?after=x"):
        response = httpx.get(f"{server.url}/v1/responses/{kept}{below}")
        found[reason_of(READ[0], response.status_code, response.json()["error"])] += 1
    return found


def test_each_rare_reason_has_a_request(scripted: ServerProcess) -> None:
    found = _rare(scripted)
    assert len(found) == len(RARE) + 2
    assert found.keys() <= {*REASONS}


@pytest.mark.parametrize("path", BODIES)
def test_what_is_allowed_is_served_or_refused_for_a_reason(
    scripted: ServerProcess, requests: dict[bool, Any], path: str
) -> None:
    found = _ask(scripted, requests[False], path, FEW[path], served=False)
    assert found[200] > 0.2 * found.total()
    _idle(scripted)


@pytest.mark.parametrize("path", BODIES)
def test_what_asks_for_nothing_unsupported_is_served(
    scripted: ServerProcess, requests: dict[bool, Any], path: str
) -> None:
    assert _ask(scripted, requests[True], path, FEW[path], served=True)[200] >= 0.9 * FEW[path]
    _idle(scripted)


def test_reading(scripted: ServerProcess, requests: dict[bool, Any]) -> None:
    _reads(scripted, requests[False], 36)
    _idle(scripted)


def test_the_specification_forbids_what_is_said_to_be_forbidden(document: dict[str, Any]) -> None:
    for reason in FORBIDDEN:
        assert reason.param is not None
        assert any(reason.words in each for each in descriptions(document, reason.param)), reason


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_thousand_requests(scripted: ServerProcess, requests: dict[bool, Any]) -> None:
    """No reason is left that no request meets."""
    found, wrong = Counter[Any](), list[str]()
    for path, examples in MANY.items():
        for served in (False, True):
            try:
                found += _ask(scripted, requests[served], path, examples, served=served)
            except AssertionError as error:  # what else there is has to be known too
                wrong.append(f"{path}: {error}")
    assert not wrong, "\n\n".join(wrong)
    found += _reads(scripted, requests[False], READS) + _rare(scripted)
    _idle(scripted)
    print(f"\n{found.total():,} requests, {found[200]:,} served")
    for reason, count in found.most_common():
        print(f"{count:6} {reason if isinstance(reason, (str, int)) else reason.message}")
    assert found.total() >= 5000
    assert [reason for reason in REASONS if not found[reason]] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_engine_that_computes(tmp_path: Path, requests: dict[bool, Any]) -> None:
    model = write_tool_model(tmp_path / MODEL)
    flags = ("--max_num_seqs", "256", "--max_model_len", "1024", "--dtype", "float32")
    with running_server(tmp_path / "server", model, *flags, engine="real") as server:
        for path in BODIES:
            assert _ask(server, requests[True], path, 50, served=True)[200] >= 45
        _idle(server)
