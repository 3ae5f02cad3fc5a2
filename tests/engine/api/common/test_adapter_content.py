"""What an API server knows of an adapter's content: one of unknown content must not pass for the base model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from blade_llm.api.common.context import ServerContext

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
