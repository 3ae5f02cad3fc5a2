"""The token that the router sends to engines' internal ports, and the revision it learns there."""

from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.internal_port import InternalPort
from router_support.serving import eventually, serving

from blade_protocol import environment
from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet


async def test_revision_is_learnt_with_the_token_of_the_file_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with MockEngine("a") as a, InternalPort("new") as port:
        endpoints = (EndpointConfig(url=a.url, name="a", internal_url=port.url),)
        async with serving(wait=False, endpoints=endpoints, health_interval=0.3) as router:
            await eventually(lambda: len(port.tokens_seen) >= 2)
            assert set(port.tokens_seen) == {"old"}
            await eventually(lambda: "/internal/state: status 401" in caplog.text)
            assert caplog.text.count("/internal/state: status 401") == 1, "logged once"
            assert (await router.chat()).status_code == 200, "it is only the revision that is unknown"
            token.write_text("new\n")
            endpoint = router.router.endpoints.all[0]
            await eventually(lambda: endpoint.revision == "rev-7")
            assert (await router.status())["endpoints"]["a"]["revision"] == "rev-7"


async def test_an_engine_that_has_yet_to_see_a_new_token_is_followed_with_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    monkeypatch.setattr("blade_router.config.token_header.REREAD_SECONDS", 0.0)
    async with MockEngine("a") as a, InternalPort("old") as port:
        endpoints = (EndpointConfig(url=a.url, name="a", internal_url=port.url),)
        async with serving(wait=False, endpoints=endpoints, health_interval=0.3):
            await eventually(lambda: port.subscribers)
            token.write_text("new\n")
            port.hang_up()
            await eventually(lambda: port.subscribers)
            assert port.tokens_seen[-2:] == ["new", "old"]


async def test_a_configured_revision_stays() -> None:
    async with MockEngine("a") as a, InternalPort() as port:
        config = EndpointConfig(url=a.url, internal_url=port.url, revision="r")
        async with serving(wait=False, endpoints=(config,)) as router:
            endpoint = router.router.endpoints.all[0]
            await eventually(lambda: endpoint.report.models == {"m"})
            assert endpoint.revision == "r"


def test_a_reported_revision_lasts_as_long_as_the_engine() -> None:
    endpoint = Endpoint(EndpointConfig(url="http://10.0.0.1:80", name="pod-1"))
    endpoint.report.update(revision="reported")
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-1", draining=True))
    assert endpoint.revision == "reported"
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-2"))
    assert endpoint.revision == "", "another pod got the address"
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-2", revision="known"))
    assert endpoint.revision == "known"


def test_a_newly_reported_revision_counts_unless_one_is_configured() -> None:
    plain, fixed = EndpointConfig(url="http://a:1"), EndpointConfig(url="http://a:1", revision="r9")
    endpoint = Endpoint(plain)
    endpoint.report.update(revision="r1")
    endpoint.report.update(revision="r2")
    assert endpoint.revision == "r2"
    endpoint.configure(fixed)
    assert endpoint.revision == "r9"
    endpoint.report.update(revision="r3")
    assert endpoint.revision == "r9"
    endpoint.configure(plain)
    assert endpoint.revision == "r3"


async def test_another_kind_of_engine_at_the_same_url_is_another_endpoint() -> None:
    found = EndpointSet()
    for config in (
        EndpointConfig(url="http://a:1"),
        EndpointConfig(url="http://a:1", engine="vllm"),
        EndpointConfig(url="http://a:1", engine="vllm", kv_events="tcp://a:2"),
    ):
        before = list(found.all)
        (new,) = found.update([config])
        assert found.all == [new]
        assert all(each.removed for each in before)
        assert not found.update([config]), "nothing has changed"
