"""For each cross-field rule: specs that keep it and specs that break it. An API server must judge them as we do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HUB = "hf://Qwen/Qwen3-8B"
FILE = "file:///m"


@dataclass(frozen=True)
class Example:
    """A service by name and spec; ``breaks`` is the field of the one rule it breaks, empty when it keeps all."""

    breaks: str
    name: str
    spec: dict[str, Any]


def _spec(uri: str = FILE, **spec: Any) -> dict[str, Any]:
    model = {"uri": uri, **spec.pop("model", {})}
    return {"model": model, **spec}


EXAMPLES: tuple[Example, ...] = (
    Example("", "a", _spec()),
    Example("", "a-" + "b" * 38, _spec()),
    Example("metadata.name", "a-" + "b" * 39, _spec()),
    Example("metadata.name", "1qwen", _spec()),
    Example("metadata.name", "qwen.3", _spec()),
    Example("", "qwen-3", _spec(HUB, model={"revision": "main", "cache": {"claimName": "models"}})),
    Example("spec.model.revision", "qwen", _spec(model={"revision": "main"})),
    Example("spec.model.cache", "qwen", _spec(model={"cache": {}})),
    Example("", "qwen", _spec(engine={"extraArgs": ["--models_are_fun", "--disable_prompt_cache", "model"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--model", "/x"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--port=1"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--log_level=DEBUG", "--max-model-len=9"]})),
    Example("", "qwen", _spec(engine={"env": [{"name": "MY_BLADE_X", "value": "1"}]})),
    Example("spec.engine.env", "qwen", _spec(engine={"env": [{"name": "BLADE_HOST", "value": "::"}]})),
    Example("", "qwen", _spec(rollout={"maxSurge": 0, "maxUnavailable": 1})),
    Example("spec.rollout", "qwen", _spec(rollout={"maxSurge": 0})),
    Example("", "qwen", _spec(rollout={"drainTimeout": "24h"})),
    Example("spec.rollout.drainTimeout", "qwen", _spec(rollout={"drainTimeout": "23h61m"})),
)
