"""Models by name: the service each one is at, and what is written into a request for it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.requests import request

from blade_protocol.routing import EndpointConfig, Limits, ModelConfig
from blade_router.config.parsing import ConfigError, parse_config
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.request.fields import RoutingFields
from blade_router.request.models import Catalog, Target, prepare
from blade_router.request.request import ClientRequest
from blade_router.request.routes import check_path


def endpoints(*services: str) -> EndpointSet:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://e{index}:1", service=name) for index, name in enumerate(services))
    return found


# where a model is


def test_a_router_of_one_service_takes_any_name() -> None:
    catalog = Catalog(endpoints("", ""))
    assert catalog.find("whatever") == catalog.find(None) == Target("")
    assert not catalog.several


def test_the_only_service_may_have_a_name() -> None:
    model = ModelConfig(name="m", service="a", aliases=("alias",))
    catalog = Catalog(endpoints("a"), [model])
    assert catalog.find("m") == catalog.find("alias") == Target("a", model)
    assert catalog.find("an-adapter") == Target("a")


def test_of_several_services_the_name_decides() -> None:
    here, there = ModelConfig(name="m", service="a"), ModelConfig(name="n", service="b", aliases=("o",))
    known = endpoints("a", "b")
    catalog = Catalog(known, [here, there])
    assert (catalog.find("m"), catalog.find("o")) == (Target("a", here), Target("b", there))
    assert catalog.find("lora") is None
    known.all[1].report.adapters = frozenset({"lora"})
    assert catalog.find("lora") == Target("b")
    with pytest.raises(Refused, match="provide a model"):
        catalog.nameless(request())


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        ([{"name": "a"}, {"name": "a"}], r"\$.models\[1\].name: 'a' is \$.models\[0\].name already"),
        ([{"name": "a"}, {"name": "b", "aliases": ["c", "a"]}], r"\$.models\[1\].aliases\[1\]: 'a' is"),
        ([{"name": ""}], r"\$.models\[0\].name: expected a name"),
        ([{"name": "a", "defaults": {"model": "b"}}], r"\$.models\[0\].defaults.model: "),
    ],
)
def test_a_name_stands_for_one_model(models: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_config(json.dumps({"models": models}).encode())


def test_a_request_without_a_model_means_the_only_one() -> None:
    model = ModelConfig(name="m", max_tokens=5)
    catalog = Catalog(endpoints(""), [model])
    assert catalog.find(None) == catalog.find("") == Target("", model)


@pytest.mark.parametrize("fields", [{"max_tokens": 5}, {"defaults": {"n": 2}}, {"limits": Limits(concurrent=1)}])
def test_a_request_without_a_model_bypasses_no_limit_of_several(fields: dict[str, Any]) -> None:
    plain = Catalog(endpoints(""), [ModelConfig(name="m"), ModelConfig(name="n")])
    assert plain.find(None) == Target("")
    catalog = Catalog(endpoints(""), [ModelConfig(name="m"), ModelConfig(name="n", **fields)])
    assert catalog.find(None) is None
    assert catalog.find("lora") == Target("")
    with pytest.raises(Refused, match=r"\(m, n\)") as caught:
        catalog.nameless(request())
    assert (caught.value.status, caught.value.code) == (400, "missing_model")
    assert catalog.nameless(request("/v1/responses/resp_1/cancel")) == Target("")


def test_of_several_services_a_stored_response_is_at_that_of_the_engine_that_keeps_it() -> None:
    known = endpoints("a", "b", "b")
    catalog = Catalog(known)
    response = f"resp_{known.all[1].response_tag}_{'0' * 32}"
    stored = request(f"/v1/responses/{response}/cancel")
    assert catalog.nameless(stored) == Target("b")
    gone, moved = f"resp_{'0' * 8}_{'0' * 32}", known.all[2].response_tag
    assert catalog.nameless(request(f"/v1/responses/{gone}/cancel")) == Target("a")
    known.moved_responses.note(gone, moved)
    assert catalog.nameless(request(f"/v1/responses/{gone}/cancel")) == Target("b")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completion%73", "/v1/model%73", "/v1//completions", "/v1/./completions", "/v1/x/../completions"),
        *("/v1/completions/..", "/v1/completions/.", "/v1/completions#x", "/v1/models/%2e%2e/completions"),
        *("/v1/models/..%2fcompletions", "/v1/models/../completions", "/v1/models/a#b"),
    ],
)
def test_a_path_that_is_not_normal_is_refused(path: str) -> None:
    with pytest.raises(Refused) as caught:
        check_path(path)
    assert (caught.value.status, caught.value.code) == (400, "invalid_path")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models/", "/v1/models/org%2Fname-1.5", "/v1/models/a/.b"])
def test_usual_paths_are_normal(path: str) -> None:
    check_path(path)


# what is written into a request


def test_bytes_are_untouched_where_nothing_has_to_change() -> None:
    client_request = request(model="m", temperature=0.1, priority=7, max_tokens=5)
    before = client_request.body
    prepare(client_request, Target("", ModelConfig(name="m", defaults={"temperature": 1.0}, max_tokens=5)), 0)
    prepare(client_request, Target(""), None)
    assert client_request.body is before


def test_an_alias_becomes_the_name_and_nothing_else_changes() -> None:
    body = {
        "model": "alias",
        "messages": [{"role": "user", "content": "ü\n\u2028"}],
        "x": {"y": [1, 2.5, None, 2**70 + 1]},
    }
    client_request = request(**body)
    prepare(client_request, Target("", ModelConfig(name="m", aliases=("alias",))), None)
    assert json.loads(client_request.body) == body | {"model": "m"}
    assert client_request.fields.model == "m"


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_rewriting_keeps_every_value(body: dict[str, Any]) -> None:
    asked = request(**(body | {"model": "alias"}))
    prepare(asked, Target("", ModelConfig(name="m", aliases=("alias",))), None)
    assert json.loads(asked.body) == body | {"model": "m"}


@pytest.mark.parametrize("value", [b"tru", b'"\\q"', b"[" * 5000 + b"]" * 5000])
def test_what_cannot_be_rewritten_is_the_clients_mistake(value: bytes) -> None:
    body = b'{"model": "alias", "x": %b}' % value
    client_request = ClientRequest("POST", "/v1/chat/completions", RoutingFields(model="alias"), body, b"r")
    with pytest.raises(Refused) as caught:
        prepare(client_request, Target("", ModelConfig(name="m", aliases=("alias",))), None)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_defaults_are_for_fields_that_are_not_there() -> None:
    model = ModelConfig(name="m", defaults={"temperature": 0.6, "top_p": 0.9})
    client_request = request(model="m", temperature=None)
    prepare(client_request, Target("", model), None)
    assert json.loads(client_request.body) == {"model": "m", "temperature": None, "top_p": 0.9}
    embedding = request("/v1/embeddings", model="m", input="x")
    prepare(embedding, Target("", model), None)
    assert json.loads(embedding.body) == {"model": "m", "input": "x"}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {}, {"max_tokens": 9}),
        ("/v1/chat/completions", {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ("/v1/responses", {}, {"max_output_tokens": 9}),
        ("/v1/responses", {"max_output_tokens": 5}, {"max_output_tokens": 5}),
    ],
)
def test_the_default_length_has_the_name_of_the_api(path: str, body: dict[str, int], expected: dict[str, int]) -> None:
    client_request = request(path, model="m", **body)
    prepare(client_request, Target("", ModelConfig(name="m", defaults={"max_tokens": 9})), None)
    assert json.loads(client_request.body) == {"model": "m"} | expected


def test_a_bound_is_named() -> None:
    model = Target("", ModelConfig(name="m", max_tokens=100))
    prepare(request(model="m", max_tokens=100), model, None)
    with pytest.raises(Refused, match="max_tokens is 101, and the limit of the model `m` is 100") as caught:
        prepare(request(model="m", max_completion_tokens=101), model, None)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("requested", "least", "sent"),
    [
        *((-5, 0, 0), (5, 0, 5), (-5, -10, -5), (-20, -10, -10), (-5, None, -5)),
        *((None, -10, None), (None, 0, None), (None, None, None), (None, 5, 5)),
    ],
)
def test_a_request_cannot_raise_itself_above_its_key(
    requested: int | None, least: int | None, sent: int | None
) -> None:
    """A lower number goes first, in the router's queue and in the engine's."""
    body = {"model": "m"} if requested is None else {"model": "m", "priority": requested}
    found = request(**body)
    prepare(found, Target(""), least)
    assert json.loads(found.body).get("priority") == found.fields.priority == sent


def test_a_priority_is_written_in_only_for_engines_that_read_it() -> None:
    client_request = request(model="m")
    prepare(client_request, Target(""), 5, ordered=False)
    assert "priority" not in json.loads(client_request.body)
    by_default = request(model="m")
    prepare(by_default, Target("", ModelConfig(name="m", defaults={"priority": -9})), 0, ordered=False)
    assert json.loads(by_default.body)["priority"] == 0
    known = EndpointSet()
    known.update(
        [
            EndpointConfig(url="http://a:1", service="a"),
            EndpointConfig(url="http://b:1", service="b"),
            EndpointConfig(url="http://c:1", service="b", engine="vllm"),
        ]
    )
    catalog = Catalog(known)
    assert [catalog.orders(service) for service in ("a", "b")] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {}, {"max_tokens": 100}),
        ("/v1/chat/completions", {"max_tokens": None}, {"max_tokens": 100}),
        ("/v1/chat/completions", {"max_output_tokens": 5}, {"max_output_tokens": 5, "max_tokens": 100}),
        ("/v1/chat/completions", {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ("/v1/completions", {"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 100}),
        ("/v1/responses", {"max_tokens": 5}, {"max_tokens": 5, "max_output_tokens": 100}),
        ("/v1/embeddings", {}, {}),
    ],
)
@pytest.mark.parametrize("defaults", [{}, {"max_tokens": 101}, {"max_tokens": "many"}, {"max_tokens": None}])
def test_a_request_without_a_length_gets_the_bound(
    path: str, body: dict[str, Any], expected: dict[str, int], defaults: dict[str, Any]
) -> None:
    """Also where a default is above it."""
    client_request = request(path, model="m", **body)
    prepare(client_request, Target("", ModelConfig(name="m", max_tokens=100, defaults=defaults)), None)
    assert json.loads(client_request.body) == {"model": "m"} | expected


def test_a_default_length_below_the_bound_stays() -> None:
    client_request = request(model="m", max_tokens=None)
    prepare(client_request, Target("", ModelConfig(name="m", max_tokens=100, defaults={"max_tokens": 50})), None)
    assert client_request.fields.max_tokens == 50
