"""The front's side of the engine, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from blade_llm.engine.client import EngineClient
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams


async def test_requests_that_cannot_be_sent_are_not_left_open(tmp_path: Path) -> None:
    client = EngineClient(f"ipc://{tmp_path / 'engine'}")
    good = GenerateRequest(request_id="a", prompt_token_ids=[1], sampling=SamplingParams())
    bad = GenerateRequest(request_id="b", prompt_token_ids=[1], sampling=SamplingParams(), priority=2**70)
    with pytest.raises(OverflowError):
        client.submit([good, bad])
    assert client.num_open == 0
    client.close()
