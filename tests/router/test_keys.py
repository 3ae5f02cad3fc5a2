"""Keys: who may ask, that nothing remembers one in plain, and that they change without anybody noticing."""

import asyncio
import base64
import gc
import hashlib
import io
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.kubernetes import SECRETS, SLICES, FakeApi
from router_support.raw import connected
from router_support.serving import Running, eventually, question, serving

from blade_protocol import headers as names
from blade_protocol.routing import Limits
from blade_router.admission import key_sources
from blade_router.admission.keys import Key, Keyring, parse_keys
from blade_router.app import main
from blade_router.arguments import Options, parse_arguments
from blade_router.config import ConfigError
from blade_router.errors import Headers, Refused
from blade_router.kubernetes import following
from blade_router.router import Router, make_keys

SECRET = "sk-correct-horse-battery"
HEX = hashlib.sha256(SECRET.encode()).hexdigest()
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sources, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(following, "BACKOFF_FIRST", 0.01)


def content(*keys: Mapping[str, Any], **tiers: Mapping[str, Any]) -> str:
    return json.dumps({"keys": keys, "tiers": tiers})


def key(name: str = "team-a", secret: str = SECRET, **fields: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}


def parsed(text: str) -> dict[str, Key]:
    return {key.name: key for key in parse_keys({"keys.json": text.encode()})}


def remove(path: Path) -> None:
    path.unlink()


def write(path: Path, text: str) -> None:
    """In one step, as docs say."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


# what a file says


def test_a_key_says_more_than_its_tier() -> None:
    found = parsed(
        content(
            key("a", "1", tier="gold"),
            key("b", "2", tier="gold", priority=0, requests_per_minute=5, models=["m"], expires="2027-01-31T00:00:00Z"),
            key("c", "3"),
            gold={"priority": -10, "weight": 3, "requests_per_minute": 100, "concurrent": 7},
        )
    )
    gold, own, plain = found["a"], found["b"], found["c"]
    assert (gold.priority, gold.weight, gold.limits) == (-10, 3, Limits(requests_per_minute=100, concurrent=7))
    assert (own.priority, own.limits) == (0, Limits(requests_per_minute=5, concurrent=7))
    assert (own.models, own.expires) == (frozenset({"m"}), 1801353600.0)
    assert (plain.priority, plain.weight, plain.limits, plain.models, plain.expires) == (0, 1.0, Limits(), None, None)


def test_files_of_a_folder_are_one_list() -> None:
    files = {
        "secret/a.json": content(key("a", "1", tier="gold")).encode(),
        "secret/tiers": content(gold={"priority": -1}).encode(),
        "secret/team-b": b"sk-plain\n",
        "secret/team-c": f"sha256:{HEX}\n".encode(),
    }
    found = {key.name: key for key in parse_keys(files)}
    assert found["a"].priority == -1
    assert found["team-b"].digest == hashlib.sha256(b"sk-plain").digest()
    assert found["team-c"].digest.hex() == HEX


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "keys.json: Input data was truncated"),
        ("", "keys.json: expected"),
        ("two words", "keys.json: expected"),
        ('{"keys": [{}]}', r"required field `name` - at `\$.keys\[0\]`"),
        ('{"kys": []}', "an unknown field; known are keys, tiers$"),
        (f'{{"{SECRET}": {{}}}}', "an unknown field; known are keys, tiers$"),
        (f'{{"keys": [{{"{SECRET}`x": 1}}]}}', r"an unknown field - at `\$.keys\[0\]`; known are .*sha256"),
        (f'{{"tiers": {{"{SECRET}": {{"{SECRET}": 1}}}}}}', r"an unknown field - at `\$.tiers\[...\]`; known are "),
        (content({"name": "a"}), r"\$.keys\[0\]: expected one of sha256"),
        (content({"name": "a", "sha256": "12"}), r"\$.keys\[0\].sha256: expected 64 hex"),
        (content({"name": "a b", "key": SECRET}), r"\$.keys\[0\].name: expected printable"),
        (content(key(tier="silver"), gold={}), r"\$.keys\[0\].tier: there is no tier 'silver' \(there is: gold\)"),
        (content(key("a"), key("a", "x")), r"\$.keys\[1\].name: there is another"),
        (content(key("a"), key("b")), r"\$.keys\[1\]: this is the same key as 'a'"),
        (content(key(concurrent=-1)), r"\$.keys\[0\].concurrent: expected 0"),
        (content(key(weight=0)), r"\$.keys\[0\].weight: expected"),
        (content(key(expires="2027-01-01T00:00:00")), r"\$.keys\[0\].expires: expected a time with its zone"),
        (content(gold={"weight": -1}), r"\$.tiers.gold.weight: expected"),
    ],
)
def test_mistakes_are_named_by_their_field_and_never_show_a_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parsed(text)
    assert SECRET not in str(caught.value)


# who a client is


def ring(*keys: Mapping[str, Any]) -> Keyring:
    ring = Keyring(required=True)
    ring.replace(parsed(content(*keys)).values())
    return ring


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", f"Bearer {SECRET}".encode())],
        [(b"authorization", f"bearer  {SECRET} ".encode())],
        [(b"x-api-key", SECRET.encode())],
        [(b"api-key", SECRET.encode())],
        [(b"authorization", b"Basic dXNlcg=="), (b"x-api-key", SECRET.encode())],
    ],
)
def test_where_a_key_may_be(headers: Headers) -> None:
    assert ring(key()).find(headers).name == "team-a"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "You didn't provide an API key"),
        ([(b"authorization", b"Basic dXNlcg==")], "You didn't provide"),
        ([(b"authorization", b"Bearer ")], "You didn't provide"),
        ([(b"authorization", f"Bearer {SECRET}x".encode())], "Incorrect"),
        ([(b"authorization", f"Bearer {HEX}".encode())], "Incorrect"),
        ([(b"x-api-key", b"\xff\x00")], "Incorrect"),
        ([(b"api-key", b"sk-old")], "expired"),
    ],
)
def test_everybody_else_gets_the_same_401(headers: Headers, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        ring(key(), key("old", "sk-old", expires="2001-01-01T00:00:00Z")).find(headers)
    refusal = caught.value
    error = json.loads(refusal.body)["error"]
    assert (refusal.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert (b"www-authenticate", b"Bearer") in refusal.headers
    assert SECRET not in str(refusal)


def test_without_keys_everybody_may_ask() -> None:
    assert Keyring().find([]).name == ""


def test_an_empty_list_of_keys_lets_nobody_in() -> None:
    with pytest.raises(Refused) as caught:
        ring().find([(b"x-api-key", b"")])
    assert caught.value.status == 401


def test_before_keys_are_known_clients_are_to_come_again() -> None:
    with pytest.raises(Refused) as caught:
        Keyring(required=True).find([(b"x-api-key", SECRET.encode())])
    assert (caught.value.status, caught.value.retry_after) == (503, 1)


# a router with keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write(path, content(key()))
    return path


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine("a") as engine:
        yield engine


async def ask(router: Running, secret: str = SECRET, **body: Any) -> httpx.Response:
    return await router.client.post(
        "/v1/chat/completions", json=question() | body, headers={"authorization": f"Bearer {secret}"}
    )


async def knows(router: Running, name: str, secret: str) -> None:
    digest = hashlib.sha256(secret.encode()).digest()
    keyring = router.router.admission.keyring
    await eventually(lambda: any((key.name, key.digest) == (name, digest) for key in keyring.keys))


async def test_what_is_behind_keys_and_what_is_not(file: Path, engine: MockEngine) -> None:
    async with serving(engine, keys=file) as router:
        assert (await router.chat()).status_code == 401
        assert (await router.client.get("/v1/models")).status_code == 401
        assert (await router.client.post("/tokenize", json={})).status_code == 401
        for path in ("/health", "/live", "/metrics", "/status"):
            assert (await router.client.get(path)).status_code == 200
        assert not engine.received
        assert (await router.chat(headers=BEARER)).status_code == 200
        assert (await router.client.get("/v1/models", headers=BEARER)).status_code == 200
        assert await router.metric('blade_router_requests_total{code="401"}') == 3


async def test_a_key_of_low_priority_is_behind_others_at_the_engine(file: Path, engine: MockEngine) -> None:
    write(file, content(key(priority=5)))
    async with serving(engine, keys=file) as router:
        assert (await ask(router)).status_code == 200
        assert json.loads(engine.received[0].body)["priority"] == 5


async def test_engines_get_no_key(file: Path, engine: MockEngine) -> None:
    async with serving(engine, keys=file) as router:
        await router.chat(headers=BEARER | {"x-api-key": "b", "api-key": "c", "x-kept": "d"})
        (received,) = engine.received
        assert [received.header(name) for name in ("authorization", "x-api-key", "api-key", "x-kept")] == [
            [],
            [],
            [],
            ["d"],
        ]


async def test_without_keys_the_header_is_the_engines(engine: MockEngine) -> None:
    async with serving(engine) as router:
        await router.chat(headers=BEARER)
        assert engine.received[0].header("authorization") == [BEARER["authorization"]]


async def test_limits_of_a_key_on_its_answers(file: Path, engine: MockEngine) -> None:
    write(file, content(key(requests_per_minute=2), key("b", "sk-b")))
    async with serving(engine, keys=file) as router:
        first = await ask(router)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        await ask(router)
        third = await ask(router)
        assert third.status_code == 429
        assert 1 <= int(third.headers["retry-after"]) <= 62
        assert third.headers["x-ratelimit-remaining-requests"] == "0"
        assert third.json()["error"]["code"] == "rate_limit_exceeded"
        other = await ask(router, "sk-b")
        assert other.status_code == 200
        assert "x-ratelimit-limit-requests" not in other.headers


async def test_tokens_are_settled_with_what_the_answer_used(file: Path, engine: MockEngine) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=file) as router:
        for _ in range(5):  # each reserves more than half, and uses 2
            assert (await ask(router, max_tokens=600)).status_code == 200
        too_large = await ask(router, max_tokens=2000)
        assert too_large.status_code == 429
        assert "retry-after" not in too_large.headers
        assert too_large.headers["x-should-retry"] == "false"
        assert (await ask(router, max_tokens=300, n=3)).status_code == 200
        assert (await ask(router, max_tokens=300, n=4)).status_code == 429


async def test_a_stream_without_usage_counts_its_events(file: Path, engine: MockEngine) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    engine.tokens = 250
    async with serving(engine, keys=file) as router:
        assert (await ask(router, stream=True, max_tokens=900)).status_code == 200
        left = int((await ask(router, max_tokens=1)).headers["x-ratelimit-remaining-tokens"])
        assert 680 < left < 740


@pytest.mark.parametrize("extra", [{"max_tokens": 10**30}, {"n": 10**30}, {"max_tokens": -5, "n": -5}])
async def test_absurd_numbers_leave_limits_as_they_are(file: Path, engine: MockEngine, extra: dict[str, Any]) -> None:
    write(file, content(key(requests_per_minute=100, concurrent=1), key("b", "sk-b", tokens_per_minute=1000)))
    async with serving(engine, keys=file) as router:
        for _ in range(2):
            assert (await ask(router, **extra)).status_code == 200
        assert (await ask(router, "sk-b", **extra)).status_code == (200 if extra.get("n", 1) < 0 else 429)
        assert (await ask(router, "sk-b", max_tokens=900)).status_code == 200


@pytest.mark.parametrize(
    "extra", ['"max_tokens": 2000.0', '"max_tokens": 2e3', '"max_tokens": "2000"', '"max_tokens": 500, "n": 4.0']
)
async def test_how_a_number_is_written_changes_no_limit(file: Path, engine: MockEngine, extra: str) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=file) as router:
        body = f'{{"model": "mock", "messages": [], {extra}}}'
        answer = await router.client.post("/v1/chat/completions", content=body, headers=BEARER)
        assert answer.status_code == 429


async def test_each_prompt_of_a_request_counts(file: Path, engine: MockEngine) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=file) as router:
        for prompts, status in ((["a"], 200), (["a"] * 4, 429)):
            body = {"model": "mock", "prompt": prompts, "max_tokens": 300}
            assert (await router.client.post("/v1/completions", json=body, headers=BEARER)).status_code == status


async def test_an_answer_that_does_not_say_its_usage_counts_as_reserved(
    file: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    monkeypatch.setattr(engine, "compute", lambda request: (None, b""))
    async with serving(engine, keys=file) as router:
        assert [(await ask(router, max_tokens=600)).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("kind", ["text/plain", "application/vnd.api+json", "multipart/form-data; boundary=x"])
async def test_what_a_body_is_called_changes_no_limit(file: Path, engine: MockEngine, kind: str) -> None:
    write(file, content(key(tokens_per_minute=1000, models=["mock"])))
    async with serving(engine, keys=file) as router:
        for body, status in ((question() | {"max_tokens": 2000}, 429), (question() | {"model": "other"}, 404)):
            answer = await router.client.post(
                "/v1/chat/completions", content=json.dumps(body), headers=BEARER | {"content-type": kind}
            )
            assert answer.status_code == status


async def test_a_failed_request_uses_no_tokens(file: Path, engine: MockEngine) -> None:
    write(file, content(key(tokens_per_minute=1000)))
    engine.mode, engine.status = "status", 400
    async with serving(engine, keys=file) as router:
        for _ in range(3):
            assert (await ask(router, max_tokens=900)).status_code == 400


async def test_concurrent_requests_end_when_the_client_leaves(file: Path, engine: MockEngine) -> None:
    write(file, content(key(concurrent=1)))
    engine.gate = asyncio.Semaphore(0)
    async with serving(engine, keys=file) as router:
        first = asyncio.create_task(ask(router))
        await eventually(lambda: engine.active == 1)
        assert (await ask(router)).status_code == 429
        first.cancel()
        await eventually(lambda: engine.active == 0)
        engine.gate.release()
        assert (await ask(router)).status_code == 200


async def test_everybody_shares_the_limits_without_keys(engine: MockEngine, tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"anonymous": {"requests_per_minute": 1}}))
    async with serving(engine, config=config) as router:
        assert (await router.chat()).status_code == 200
        assert (await router.chat()).status_code == 429


async def test_keys_are_reloaded_under_load(file: Path, engine: MockEngine) -> None:
    """Nobody whose key stays is refused, and limits go on counting."""
    write(file, content(key(), key("counted", "sk-counted", requests_per_minute=2)))
    statuses: set[int] = set()
    async with serving(engine, keys=file) as router:
        assert (await ask(router, "sk-counted")).status_code == 200
        asking = True

        async def load() -> None:
            while asking:
                statuses.add((await ask(router)).status_code)

        clients = [asyncio.create_task(load()) for _ in range(4)]
        for number in range(20):
            name = f"new-{number}"
            keys = (key(), key(name, f"sk-{name}"), key("counted", "sk-counted", requests_per_minute=2))
            write(file, content(*keys))
            await knows(router, name, f"sk-{name}")
        asking = False
        await asyncio.gather(*clients)
        assert statuses == {200}
        assert [(await ask(router, "sk-counted")).status_code for _ in range(2)] == [200, 429]
        write(file, content(key()))
        await eventually(lambda: len(list(router.router.admission.keyring.keys)) == 1)
        assert (await ask(router, "sk-counted")).status_code == 401


async def test_a_request_under_way_ends_though_its_key_is_gone(file: Path, engine: MockEngine) -> None:
    write(file, content(key(concurrent=1), key("b", "sk-b")))
    engine.gate = asyncio.Semaphore(0)
    async with serving(engine, keys=file) as router:
        first = asyncio.create_task(ask(router))
        await eventually(lambda: engine.active == 1)
        write(file, content(key("b", "sk-b")))
        await eventually(lambda: len(list(router.router.admission.keyring.keys)) == 1)
        engine.gate.release()
        assert (await first).status_code == 200
        assert (await ask(router)).status_code == 401


async def test_a_broken_file_changes_nothing(file: Path, engine: MockEngine, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(engine, keys=file) as router:
        write(file, json.dumps({"keys": [{"name": "a", "key": SECRET, "sha256": HEX}]}))
        await eventually(lambda: "$.keys[0]: expected one of" in caplog.text)
        assert (await router.status())["sources"] == {"keys": False}
        remove(file)
        await eventually(lambda: "No such file" in caplog.text)
        assert (await ask(router)).status_code == 200
        write(file, content(key("a", "sk-a")))
        await knows(router, "a", "sk-a")
        assert (await router.status())["sources"] == {"keys": True}
        assert (await ask(router)).status_code == 401


async def test_a_mounted_secret_is_followed(tmp_path: Path, engine: MockEngine) -> None:
    """Kubernetes swaps a symlink; the files are behind it."""
    for version, secret in (("..1", SECRET), ("..2", "sk-new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "team-a").write_text(secret)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "..data").symlink_to(tmp_path / "..1")
    (mounted / "team-a").symlink_to("..data/team-a")
    async with serving(engine, keys=mounted) as router:
        assert (await ask(router)).status_code == 200
        (mounted / "..new").symlink_to(tmp_path / "..2")
        (mounted / "..new").rename(mounted / "..data")
        await knows(router, "team-a", "sk-new")
        assert (await ask(router)).status_code == 401


def put_secret(api: FakeApi, **entries: str) -> None:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in entries.items()}
    api.put(SECRETS, "my-keys", data=data)


async def test_a_secret_is_followed_through_the_api(
    tmp_path: Path, engine: MockEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeApi(tmp_path / "serviceaccount") as api:
        put_secret(api, **{"team-a": SECRET})
        async with serving(engine, keys_secret="my-keys", cluster=api.cluster) as router:
            assert (await ask(router)).status_code == 200
            put_secret(api, **{"keys.json": content(key("b", "sk-b"))})
            await knows(router, "b", "sk-b")
            assert (await ask(router)).status_code == 401
            put_secret(api, broken="{")
            await eventually(lambda: "Secret my-keys: broken: " in caplog.text)
            api.delete(SECRETS, "my-keys")
            await eventually(lambda: "it is not there" in caplog.text)
            assert (await ask(router, "sk-b")).status_code == 200, "what was known stays"


async def test_ready_routers_of_the_own_service_split_limits(tmp_path: Path, file: Path, engine: MockEngine) -> None:
    def put_peers(api: FakeApi, *ready: bool) -> None:
        endpoints = [
            {"addresses": [f"10.0.0.{number}"], "conditions": {"ready": each}, "targetRef": {"uid": str(number)}}
            for number, each in enumerate(ready)
        ]
        labels = {"kubernetes.io/service-name": "my-router"}
        api.put(SLICES, "routers", labels=labels, addressType="IPv4", ports=[], endpoints=endpoints)

    async with FakeApi(tmp_path / "serviceaccount") as api:
        put_peers(api, True, True, False)
        async with serving(engine, keys=file, peers="my-router", cluster=api.cluster) as router:
            quotas = router.router.admission.quotas
            await eventually(lambda: quotas.replicas == 2)
            put_peers(api, True, True, True)
            await eventually(lambda: quotas.replicas == 3)
            put_peers(api, False)
            await eventually(lambda: quotas.replicas == 1)


async def test_routers_are_counted_in_a_file_where_there_is_no_api(
    tmp_path: Path, file: Path, engine: MockEngine
) -> None:
    peers = tmp_path / "my-router.json"

    def put_peers(*leaving: bool) -> None:
        endpoints = [{"url": f"http://r{number}:1", "draining": each} for number, each in enumerate(leaving)]
        peers.write_text(json.dumps({"endpoints": endpoints}))

    put_peers(False)
    async with serving(engine, keys=file, peers=peers, replicas=5) as router:
        await eventually(lambda: router.router.admission.quotas.replicas == 1)
    put_peers(False, False, True)
    async with serving(engine, keys=file, peers=peers) as router:
        quotas = router.router.admission.quotas
        await eventually(lambda: quotas.replicas == 2)
        put_peers()
        await eventually(lambda: quotas.replicas == 1)


OURS = sorted(
    value if value != names.CLIENT_FORBIDDEN_PREFIX else f"{value}anything"
    for name, value in vars(names).items()
    if name.isupper() and value.startswith(names.CLIENT_FORBIDDEN_PREFIX)
)


@pytest.mark.parametrize("header", OURS)
async def test_forged_headers_change_nothing(file: Path, engine: MockEngine, header: str) -> None:
    async with serving(engine, keys=file, policy="round-robin") as router:
        assert (await router.chat(headers={header: SECRET})).status_code == 401
        plain, forged = await router.chat(headers=BEARER), await router.chat(headers=BEARER | {header: "1"})
        assert plain.status_code == forged.status_code == 200
        own = {"x-request-id", "content-length"}
        assert {k: v for k, v in plain.headers.items() if k not in own} == {
            k: v for k, v in forged.headers.items() if k not in own
        }
        kept = [
            sorted((key, value) for key, value in each.headers if key != "x-request-id") for each in engine.received
        ]
        assert kept[0] == kept[1]
        assert not any(key == header for key, _ in engine.received[1].headers)


def test_no_key_in_plain_stays_in_memory(tmp_path: Path) -> None:
    secret = "".join(("sk-", "remember", "-me-not"))
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": secret}]}))
    keys = make_keys(Options(keys=path))
    router = Router(Options(keys=path))
    gc.collect()
    assert keys is not None
    assert keys.keys is not None
    held = []
    for each in gc.get_objects():
        if type(each) in (dict, list, tuple) and each is not globals():  # others may do things when looked into
            values = each.values() if type(each) is dict else each
            if any(type(value) is str and value == secret for value in values):
                held.append(each)
    assert [each for each in held if "test_no_key" not in repr(each)[:2000]] == []
    assert secret not in repr(router.admission.keyring.__dict__)


# the command line


def test_hash_key_of_a_given_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET + "\n"))
    main(["hash-key", "team-a"])
    assert capsys.readouterr() == (f'{{"name":"team-a","sha256":"{HEX}"}}\n', "")


def test_hash_key_makes_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    main(["hash-key", "team-a"])
    line, shown = capsys.readouterr()
    made = shown.splitlines()[0]
    assert made.startswith("sk-")
    assert ring(json.loads(line)).find([(b"x-api-key", made.encode())]).name == "team-a"


def test_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    options = parse_arguments(
        ["--service", "a", "--service", "b", "--keys", "/k", "--keys_secret", "s", "--peers", "r", "--replicas", "2"]
    )
    assert (options.service, options.services) == (None, ("a", "b"))
    assert (options.keys, options.keys_secret, options.peers, options.replicas) == (Path("/k"), "s", "r", 2)
    assert options.cluster is not None
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("BLADE_ENDPOINTS_DIR", "/endpoints")
    local = parse_arguments(["--service", "a", "--keys", "/k", "--keys_secret", "s", "--peers", "r"])
    assert (local.keys_secret, local.peers, local.cluster) == (None, Path("/endpoints/r.json"), None)
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR")
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://a:1", "--keys_secret", "s"])
    assert "--keys_secret: this is no Kubernetes pod" in capsys.readouterr().err


def test_keys_must_be_there_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Router(Options(keys=tmp_path / "absent"))


@pytest.mark.parametrize("framing", [b"content-length: 1000000", b"transfer-encoding: chunked"])
async def test_without_a_key_a_large_body_is_not_read(engine: MockEngine, file: Path, framing: bytes) -> None:
    start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    async with serving(engine, keys=file) as router, connected(router.port) as client:
        client.send(start + framing + b"\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 401
        assert await client.closed() == b""
