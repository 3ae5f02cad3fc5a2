"""Answers are mapped to what computed them: an adapter of unknown content must not pass for the base model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from blade_llm.api.common.context import ServerContext
from blade_llm.engine.messages import AdapterInfo, AdapterReply, RequestError

STATE = SimpleNamespace(adapters=("read", "registered"), adapter_digests=("ab" * 32, ""))


def context() -> ServerContext:
    made = object.__new__(ServerContext)  # its other parts are threads and sockets
    made.client = cast("Any", SimpleNamespace(state=STATE))
    made.model = cast("Any", SimpleNamespace(names=("base",), aliases=(), adapters=True))
    return made


@pytest.mark.parametrize(
    ("name", "digest"), [("base", ""), (None, ""), ("read", "ab" * 32), ("registered", None), ("unheard", None)]
)
def test_the_digest_of_what_computes(name: str | None, digest: str | None) -> None:
    assert context().adapter_digest(name) == digest


async def test_unknown_content_is_like_nothing_else() -> None:
    assert await context().content_of("base") == "base"
    assert await context().content_of("read") == f"read{'ab' * 32}"
    assert await context().content_of("unheard") != await context().content_of("unheard")


@pytest.mark.parametrize("error", [None, RequestError(message="NaN")])
async def test_a_registered_adapter_is_read_to_know_it(error: RequestError | None) -> None:
    made = context()
    made.client = cast("Any", Client(error))
    found = [await made.content_of("registered") for _ in range(2)]
    assert (found[0] == found[1] == f"registered{'cd' * 32}") == (error is None)
    assert made.client.loaded == [("registered", "/r")] * 2  # type: ignore[attr-defined]


class Client:
    """An engine's client, before and after an adapter was read."""

    state = STATE

    def __init__(self, error: RequestError | None) -> None:
        self.loaded: list[tuple[str, str]] = []
        self._error = error

    async def list_adapters(self) -> AdapterReply:
        return AdapterReply(call_id=1, adapters=[info("read", "loaded"), info("registered", "registered")])

    async def load_adapter(self, name: str, path: str) -> AdapterReply:
        self.loaded.append((name, path))
        found = [] if self._error else [info("registered", "loaded", "cd" * 32)]
        return AdapterReply(call_id=2, error=self._error, adapters=found)


def info(name: str, state: Any, digest: str = "") -> AdapterInfo:
    return AdapterInfo(name=name, path=f"/{name[0]}", tier="disk", rank=8, nbytes=0, digest=digest, state=state)
