"""Several models behind one router: names, aliases, defaults, bounds, adapters, and one list of all of them."""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving

from blade_protocol.routing import EndpointConfig, Limits, ModelConfig
from blade_router.admission.tokens import Estimate, given_tokens, text_bytes
from blade_router.config import ConfigError, parse_config
from blade_router.endpoints import EndpointSet
from blade_router.errors import Refused
from blade_router.fields import RoutingFields, parse_fields
from blade_router.models import Catalog, Target, prepare, proper_path, wanted_tokens
from blade_router.request import ClientRequest
from blade_router.usage import Usage


def endpoints(*services: str) -> EndpointSet:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://e{index}:1", service=name) for index, name in enumerate(services))
    return found


def request(path: str = "/v1/chat/completions", /, **body: Any) -> ClientRequest:
    data = json.dumps(body, indent=1).encode()
    return ClientRequest(method="POST", path=path, fields=parse_fields(data), body=data, id=b"r")


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
    known.all[1].adapters = frozenset({"lora"})
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


def test_who_names_no_model_means_the_only_one() -> None:
    model = ModelConfig(name="m", max_tokens=5)
    catalog = Catalog(endpoints(""), [model])
    assert catalog.find(None) == catalog.find("") == Target("", model)


@pytest.mark.parametrize("asks", [{"max_tokens": 5}, {"defaults": {"n": 2}}, {"limits": Limits(concurrent=1)}])
def test_who_names_no_model_gets_around_none_of_several(asks: dict[str, Any]) -> None:
    plain = Catalog(endpoints(""), [ModelConfig(name="m"), ModelConfig(name="n")])
    assert plain.find(None) == Target("")
    catalog = Catalog(endpoints(""), [ModelConfig(name="m"), ModelConfig(name="n", **asks)])
    assert catalog.find(None) is None
    assert catalog.find("lora") == Target("")
    with pytest.raises(Refused, match=r"\(m, n\)") as caught:
        catalog.nameless(request())
    assert (caught.value.status, caught.value.code) == (400, "missing_model")
    assert catalog.nameless(request("/v1/responses/resp_1/cancel")) == Target("")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completion%73", "/v1/model%73", "/v1//completions", "/v1/./completions", "/v1/x/../completions"),
        *("/v1/completions/..", "/v1/completions/.", "/v1/completions#x", "/v1/models/%2e%2e/completions"),
        *("/v1/models/..%2fcompletions", "/v1/models/../completions", "/v1/models/a#b"),
    ],
)
def test_a_path_is_what_it_looks_like(path: str) -> None:
    with pytest.raises(Refused) as caught:
        proper_path(path)
    assert (caught.value.status, caught.value.code) == (400, "invalid_path")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models/", "/v1/models/org%2Fname-1.5", "/v1/models/a/.b"])
def test_usual_paths_are_proper(path: str) -> None:
    proper_path(path)


# what is written into a request


def test_bytes_are_untouched_where_nothing_has_to_change() -> None:
    asked = request(model="m", temperature=0.1, priority=7, max_tokens=5)
    before = asked.body
    prepare(asked, Target("", ModelConfig(name="m", defaults={"temperature": 1.0}, max_tokens=5)), 0)
    prepare(asked, Target(""), None)
    assert asked.body is before


def test_an_alias_becomes_the_name_and_nothing_else_changes() -> None:
    body = {
        "model": "alias",
        "messages": [{"role": "user", "content": "ü\n\u2028"}],
        "x": {"y": [1, 2.5, None, 2**70 + 1]},
    }
    asked = request(**body)
    prepare(asked, Target("", ModelConfig(name="m", aliases=("alias",))), None)
    assert json.loads(asked.body) == body | {"model": "m"}
    assert asked.fields.model == "m"


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


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', b"[" * 5000 + b"]" * 5000])
def test_what_cannot_be_written_anew_is_the_clients_mistake(value: bytes) -> None:
    body = b'{"model": "alias", "x": %b}' % value
    asked = ClientRequest("POST", "/v1/chat/completions", RoutingFields(model="alias"), body, b"r")
    with pytest.raises(Refused) as caught:
        prepare(asked, Target("", ModelConfig(name="m", aliases=("alias",))), None)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_defaults_are_for_fields_that_are_not_there() -> None:
    model = ModelConfig(name="m", defaults={"temperature": 0.6, "top_p": 0.9})
    asked = request(model="m", temperature=None)
    prepare(asked, Target("", model), None)
    assert json.loads(asked.body) == {"model": "m", "temperature": None, "top_p": 0.9}
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
    asked = request(path, model="m", **body)
    prepare(asked, Target("", ModelConfig(name="m", defaults={"max_tokens": 9})), None)
    assert json.loads(asked.body) == {"model": "m"} | expected


def test_a_bound_is_named() -> None:
    model = Target("", ModelConfig(name="m", max_tokens=100))
    prepare(request(model="m", max_tokens=100), model, None)
    with pytest.raises(Refused, match="max_tokens is 101, and the limit of the model `m` is 100") as caught:
        prepare(request(model="m", max_completion_tokens=101), model, None)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("asked", "least", "sent"),
    [
        *((-5, 0, 0), (5, 0, 5), (-5, -10, -5), (-20, -10, -10), (-5, None, -5)),
        *((None, -10, None), (None, 0, None), (None, None, None), (None, 5, 5)),
    ],
)
def test_a_request_cannot_raise_itself_above_its_key(asked: int | None, least: int | None, sent: int | None) -> None:
    """A lower number goes first, in the router's queue and in the engine's."""
    body = {"model": "m"} if asked is None else {"model": "m", "priority": asked}
    found = request(**body)
    prepare(found, Target(""), least)
    assert json.loads(found.body).get("priority") == found.fields.priority == sent


def test_a_priority_is_written_in_only_for_engines_that_read_it() -> None:
    asked = request(model="m")
    prepare(asked, Target(""), 5, ordered=False)
    assert "priority" not in json.loads(asked.body)
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
    asked = request(path, model="m", **body)
    prepare(asked, Target("", ModelConfig(name="m", max_tokens=100, defaults=defaults)), None)
    assert json.loads(asked.body) == {"model": "m"} | expected


def test_a_default_length_below_the_bound_stays() -> None:
    asked = request(model="m", max_tokens=None)
    prepare(asked, Target("", ModelConfig(name="m", max_tokens=100, defaults={"max_tokens": 50})), None)
    assert asked.fields.max_tokens == 50


# how many tokens it may use


def test_tokens_are_estimated_and_learned() -> None:
    estimate = Estimate()
    asked = request(model="m", prompt="x" * 4000, max_tokens=50, n=2)
    assert 1000 <= estimate.prompt(asked) <= 1020
    assert estimate.answer(asked) == 100
    for _ in range(300):
        estimate.learn(asked, Usage(prompt_tokens=2000, completion_tokens=5))
    assert 1950 <= estimate.prompt(asked) <= 2010
    without = request(model="m", prompt="x")
    assert estimate.answer(without) == 256
    for _ in range(2000):
        estimate.learn(without, Usage(prompt_tokens=1, completion_tokens=10))
    assert 10 <= estimate.answer(without) <= 12


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"input": [[1, 2], [3]]}, 3),
        ({"prompt": "[1, 2]"}, None),
        ({"prompt": ["a", "b"]}, None),
        ({"prompt": []}, None),
        ({}, None),
    ],
)
def test_prompts_of_tokens_are_counted(body: dict[str, Any], tokens: int | None) -> None:
    assert given_tokens(request("/v1/other", **body)) == tokens


@pytest.mark.parametrize(
    ("path", "tokens"), [("/v1/completions", 3), ("/v1/embeddings", 1), ("/v1/responses", 1), ("/tokenize", None)]
)
def test_the_prompt_is_the_field_that_counts_for_the_path(path: str, tokens: int | None) -> None:
    asked = request(path, input=[1], prompt=[1, 2, 3], messages=[])
    assert given_tokens(asked) == tokens


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({}, 1),
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1, 2], [3]], "n": 4}, 8),
        ({"beam_width": 5, "n": 2}, 5),
        ({"prompt": 5, "best_of": 3}, 3),
    ],
)
def test_each_prompt_and_beam_has_an_answer(body: dict[str, Any], answers: int) -> None:
    asked = request("/v1/completions", max_tokens=10, **body)
    assert wanted_tokens(asked.fields, 99) == 10 * answers


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1000.0", 1000),
        ("1e3", 1000),
        ('"99999"', 99999),
        ('"1000.0"', 1000),
        ("1.5", None),
        ("1e999", None),
        ('"inf"', None),
        ('"nan"', None),
        ('"many"', None),
        ("true", None),
        ("[5]", None),
        ("null", None),
    ],
)
def test_numbers_are_read_however_they_are_written(written: str, read: int | None) -> None:
    fields = parse_fields(b'{"model": "m", "priority": -100.0, "max_tokens": %b}' % written.encode())
    assert (fields.model, fields.priority, fields.max_tokens) == ("m", -100, read)


def test_of_several_lengths_the_highest_counts() -> None:
    assert request(max_completion_tokens=1, max_tokens=50, max_output_tokens=2).fields.token_limit == 50


def test_pictures_are_not_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    asked = request(model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}])
    assert text_bytes(asked.body) < 1000
    before = Estimate().prompt(asked)
    estimate = Estimate()
    estimate.learn(asked, Usage(prompt_tokens=5000, completion_tokens=1))
    assert estimate.prompt(asked) == before, "nothing is learned from what is no text"


@pytest.mark.parametrize("before", ["base64,", "data:text/plain;base64,", '"url":"data:image/png;base64,'])
def test_text_that_looks_like_a_picture_is_text(before: str) -> None:
    asked = request(model="m", messages=[{"role": "user", "content": before + "A" * 100_000}])
    assert text_bytes(asked.body) == len(asked.body)


# a router with several services


@contextlib.asynccontextmanager
async def two_services(
    tmp_path: Path, keys: Path | None = None
) -> AsyncIterator[tuple[Running, MockEngine, MockEngine]]:
    async with MockEngine("small") as small, MockEngine("large") as large:
        config = tmp_path / "router.json"
        content = {
            "endpoints": [
                {"url": small.url, "name": "small", "service": "a"},
                {"url": large.url, "name": "large", "service": "b"},
            ],
            "models": [
                {"name": "m-small", "service": "a", "aliases": ["default"], "limits": {"requests_per_minute": 2}},
                {"name": "m-large", "service": "b", "max_tokens": 10, "defaults": {"temperature": 0.5}},
            ],
        }
        write(config, content)
        async with serving(wait=False, config=config, keys=keys) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            yield router, small, large


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


async def ask(router: Running, model: str | None, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    named = {} if model is None else {"model": model}
    return await router.client.post("/v1/chat/completions", json=named | body, headers=headers)


async def test_requests_go_to_the_service_of_their_model(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, small, large):
        for model, engine, asked in (
            ("m-small", small, "m-small"),
            ("default", small, "m-small"),
            ("m-large", large, "m-large"),
        ):
            answer = await ask(router, model)
            assert answer.headers["x-blade-endpoint"] == engine.name
            assert json.loads(engine.received[-1].body)["model"] == asked
        assert json.loads(large.received[-1].body)["temperature"] == 0.5
        assert engine.received[-1].header("content-length") == [str(len(large.received[-1].body))]


async def test_names_that_nobody_knows(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        unknown = await ask(router, "gpt-9")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "`gpt-9`" in unknown.json()["error"]["message"]
        nameless = await ask(router, None)
        assert (nameless.status_code, nameless.json()["error"]["code"]) == (400, "missing_model")
        assert (await ask(router, "m-large", max_tokens=11)).status_code == 400


async def test_limits_hold_for_who_names_no_model_and_on_no_odd_path(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    async with MockEngine("a") as engine:
        models = [{"name": "m", "max_tokens": 10, "limits": {"requests_per_minute": 2}}]
        write(config, {"models": models})
        async with serving(engine, config=config) as router:
            assert (await ask(router, None, max_tokens=11)).status_code == 400
            for path in ("/v1/chat/completion%73", "/v1//chat/completions"):
                odd = await router.client.post(path, json={})
                assert (odd.status_code, odd.json()["error"]["code"]) == (400, "invalid_path")
            assert (await router.client.get("/v1/model%73")).status_code == 400
            answers = [await ask(router, None), await ask(router, ""), await ask(router, None)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert json.loads(engine.received[0].body)["max_tokens"] == 10


async def test_a_model_that_only_its_engines_list(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, large):
        answer = await ask(router, "large")  # the mock engine lists its own name
        assert (answer.status_code, answer.headers["x-blade-endpoint"]) == (200, "large")
        assert json.loads(large.received[-1].body)["model"] == "large"


async def test_limits_of_a_model_are_for_everybody(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        answers = [await ask(router, model) for model in ("m-small", "default", "m-small", "m-large")]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 200]
        assert "model m-small" in answers[2].json()["error"]["message"]


async def test_one_list_of_all_models(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        router.router.endpoints.all[1].adapters = frozenset({"lora"})
        cards = (await router.client.get("/v1/models")).json()
        assert cards["object"] == "list"
        by_name = {card["id"]: card for card in cards["data"]}
        assert list(by_name) == ["m-small", "default", "m-large", "small", "large", "lora"]
        assert by_name["default"]["root"] == "m-small"
        assert by_name["lora"]["parent"] == "large"
        assert (await router.client.get("/v1/models/default")).json() == by_name["default"]
        missing = await router.client.get("/v1/models/org/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await ask(router, "lora")).headers["x-blade-endpoint"] == "large"


async def test_keys_see_and_use_their_models_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    entry = {"name": "a", "sha256": hashlib.sha256(b"sk-a").hexdigest(), "models": ["default", "lora"]}
    (keys / "file").write_text(json.dumps({"keys": [entry]}))
    headers = {"x-api-key": "sk-a"}
    async with two_services(tmp_path, keys) as (router, _, _):
        router.router.endpoints.all[1].adapters = frozenset({"lora", "other"})
        cards = (await router.client.get("/v1/models", headers=headers)).json()["data"]
        assert [card["id"] for card in cards] == ["m-small", "default", "lora"]
        assert (await router.client.get("/v1/models/m-large", headers=headers)).status_code == 404
        asked = {name: await ask(router, name, headers) for name in ("m-small", "lora", "m-large", "other", "none")}
        assert [answer.status_code for answer in asked.values()] == [200, 200, 404, 404, 404]
        assert asked["m-large"].json()["error"]["message"] == asked["none"].json()["error"]["message"].replace(
            "none", "m-large"
        )


async def test_a_router_that_adds_nothing_lets_an_engine_list(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        assert (await router.client.get("/v1/models")).json() == {"object": "list", "data": [{"id": "a"}]}
        assert (await router.client.get("/v1/models")).headers["x-blade-endpoint"] == "a"


async def test_engines_that_do_not_answer_leave_what_was_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_router.model_list.FRESH_SECONDS", 0.0)
    async with two_services(tmp_path) as (router, small, _):
        before = (await router.client.get("/v1/models")).json()
        await small.kill()
        assert (await router.client.get("/v1/models")).json() == before


async def test_several_services_by_flag(tmp_path: Path) -> None:
    async with MockEngine("x") as x, MockEngine("y") as y:
        files = []
        for name, engine in (("svc-x", x), ("svc-y", y)):
            files.append(tmp_path / f"{name}.json")
            write(files[-1], {"endpoints": [{"url": engine.url, "name": engine.name}]})
        async with serving(wait=False, services=tuple(files)) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            assert {endpoint.service for endpoint in router.router.endpoints.all} == {"svc-x", "svc-y"}
            assert (await ask(router, "y")).headers["x-blade-endpoint"] == "y"
            assert (await ask(router, "z")).status_code == 404
            assert set((await router.status())["sources"]) == {"service svc-x", "service svc-y"}
