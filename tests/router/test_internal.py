"""What the router asks on the internal port, and the token it shows there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from router_support.engine import MockEngine, answer
from router_support.serving import eventually, serving

from blade_protocol import environment, headers
from blade_protocol.routing import EndpointConfig
from blade_protocol.state import EngineState
from blade_router.endpoints import Endpoint

STATE = EngineState(
    model="m",
    revision="rev-7",
    ready=True,
    draining=False,
    running=0,
    waiting=0,
    kv_blocks_total=1,
    kv_blocks_free=1,
    prompt_tokens_total=0,
    cached_tokens_total=0,
    generation_tokens_total=0,
    preemptions_total=0,
    epoch="e",
    sequence=0,
)


class InternalPort:
    """Tells the state to who shows ``token``, and remembers what was shown."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.shown: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert request == "GET /internal/state HTTP/1.1"
        given = dict(line.split(": ", 1) for line in lines if line).get(headers.INTERNAL_TOKEN, "")
        self.shown.append(given)
        writer.write(answer(200, msgspec.json.encode(STATE)) if given == self.token else answer(401, b"{}"))
        writer.close()


@contextlib.asynccontextmanager
async def internal_port(token: str) -> AsyncIterator[InternalPort]:
    port = InternalPort(token)
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    port.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield port
    server.close()


async def test_revision_is_learnt_with_the_token_of_the_file_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with MockEngine("a") as a, internal_port("new") as port:
        endpoints = (EndpointConfig(url=a.url, name="a", internal_url=port.url),)
        async with serving(wait=False, endpoints=endpoints, health_interval=0.3) as router:
            await eventually(lambda: len(port.shown) >= 2)
            assert set(port.shown) == {"old"}
            assert caplog.text.count("/internal/state answered 401") == 1, "said once"
            assert (await router.chat()).status_code == 200, "it is only the revision that is unknown"
            token.write_text("new\n")
            endpoint = router.router.endpoints.all[0]
            await eventually(lambda: endpoint.revision == "rev-7")
            assert (await router.status())["endpoints"]["a"]["revision"] == "rev-7"
            asked = len(port.shown)
            await eventually(lambda probes=a.probes: a.probes > probes + 1)  # type: ignore[misc]
            assert len(port.shown) == asked, "asked until it is known"


@pytest.mark.parametrize("told", [True, False])
async def test_no_internal_port_or_a_known_revision_is_not_asked(told: bool, tmp_path: Path) -> None:
    async with MockEngine("a") as a, internal_port("") as port:
        config = EndpointConfig(url=a.url, internal_url=port.url if told else "", revision="r" if told else "")
        async with serving(wait=False, endpoints=(config,), health_interval=0.3):
            await eventually(lambda: a.probes >= 3)
            assert not port.shown


def test_a_revision_that_the_engine_told_lasts_as_long_as_the_engine() -> None:
    endpoint = Endpoint(EndpointConfig(url="http://10.0.0.1:80", name="pod-1"))
    endpoint.revision = "told"
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-1", draining=True))
    assert endpoint.revision == "told"
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-2"))
    assert endpoint.revision == "", "another pod got the address"
    endpoint.configure(EndpointConfig(url="http://10.0.0.1:80", name="pod-2", revision="known"))
    assert endpoint.revision == "known"
