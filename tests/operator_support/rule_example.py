"""An example of a spec, and what examples are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blade_operator.spec.rules.rule import Rule

HUB = "hf://Qwen/Qwen3-8B"
FILE = "file:///m"
MODELSCOPE = "modelscope://Qwen/Qwen3-8B"
S3 = "s3://models/qwen/v1"
OCI = "oci://registry.team:5000/acme/qwen:v1"
OWN = "serving.bladellm.io/name"
TEMPLATE = "serving.bladellm.io/chat-template"


@dataclass(frozen=True)
class Example:
    """A service by name and spec; ``breaks`` is the field of the one rule it breaks, empty when it keeps all. Where
    several rules are of that field, ``says`` is a part of the message."""

    breaks: str
    name: str
    spec: dict[str, Any]
    says: str = ""

    def is_of(self, rule: Rule) -> bool:
        """Whether it breaks this rule."""
        return rule.field == self.breaks and self.says in rule.message


def spec_of(uri: str = FILE, **spec: Any) -> dict[str, Any]:
    """A spec with the model at ``uri`` and these fields."""
    model = {"uri": uri, **spec.pop("model", {})}
    return {"model": model, **spec}
