"""A whole engine around a runner: requests in, tokens out."""

from __future__ import annotations

from collections.abc import Iterable

from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner.torch_runner import TorchRunner


def whole_engine(runner: TorchRunner) -> EngineCore:
    info = EngineInfo(model="tiny", max_model_len=runner.max_model_len, device="cpu", dtype="float32")
    return EngineCore.from_config(runner.config, runner, info, num_blocks=runner.num_blocks)


def generated(core: EngineCore, requests: Iterable[GenerateRequest]) -> dict[str, list[int]]:
    """The tokens of all of them, which come at once."""
    tokens: dict[str, list[int]] = {}
    for request in requests:
        tokens[request.request_id] = []
        core.add(request)
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    return tokens
