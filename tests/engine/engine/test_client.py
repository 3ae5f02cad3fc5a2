"""The API server's connection to the engine, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from blade_llm.engine.client import EngineClient, Generation
from blade_llm.engine.messages import GenerateRequest, RequestOutput, StepOutputs
from blade_llm.sampling.parameters import SamplingParams


async def test_requests_that_cannot_be_sent_are_not_left_open(tmp_path: Path) -> None:
    client = EngineClient(f"ipc://{tmp_path / 'engine'}")
    good = GenerateRequest(request_id="a", prompt_token_ids=[1], sampling=SamplingParams())
    bad = GenerateRequest(request_id="b", prompt_token_ids=[1], sampling=SamplingParams(), priority=2**70)
    with pytest.raises(OverflowError):
        client.submit([good, bad])
    assert client.num_open == 0
    client.close()


async def test_samples_count_one_after_another(tmp_path: Path) -> None:
    client = EngineClient(f"ipc://{tmp_path / 'engine'}")
    sampling = SamplingParams()
    requests = [
        GenerateRequest(request_id="a", sibling_ids=["b", "c"], prompt_token_ids=[1], sampling=sampling),
        GenerateRequest(request_id="d", sibling_ids=["e"], prompt_token_ids=[2], sampling=sampling),
    ]
    generation = client.submit(requests)
    assert client.num_open == 5
    done = [RequestOutput(request_id=name, finish_reason="stop") for name in "ecadb"]
    touched: list[Generation] = []
    client._receive(StepOutputs(outputs=done), touched)
    assert touched == [generation]
    assert [(index, output.request_id) for index, output in await generation.get()] == list(
        zip((4, 2, 0, 3, 1), "ecadb", strict=True)
    )
    assert client.num_open == 0
    client.close()
