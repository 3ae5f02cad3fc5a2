"""The fields of ``spec.engine`` that shape requests and responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import ObjectName, Record, SecretKey

Task = Literal["generate", "embed", "score"]
Pooling = Literal["last", "mean", "cls"]
ToolCallParser = Literal[
    "none",
    "hermes",
    "llama3_json",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "qwen3_coder",
    "glm45",
    "pythonic",
]
ReasoningParser = Literal["none", "qwen3", "deepseek_r1", "deepseek_v3", "glm45", "mistral"]
TEMPLATE_MAX = 32768
"""Most characters of a template: it travels in pods' annotations, which may have 256 KiB. Known ones have 20,000."""


class ConfigMapKeyRef(Record):
    """One key of a ConfigMap."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the service's namespace.")
    key: SecretKey = Field(default="chat_template.jinja", description="Key of the ConfigMap that holds the text.")


class ChatTemplate(Record):
    """A chat template in place of the model's own. Exactly one of the two."""

    inline: Annotated[str, StringConstraints(min_length=1, max_length=TEMPLATE_MAX)] | None = Field(
        default=None, description="The template itself, in Jinja. A change of it is a new revision."
    )
    config_map_key_ref: ConfigMapKeyRef | None = Field(
        default=None,
        description="A ConfigMap of yours that holds it. Engines read it when they start: after a change of it ask "
        "for a restart, or name another.",
    )
