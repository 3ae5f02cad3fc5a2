"""The user's chat template as a file in the engine: from a ConfigMap, or from the pod's own annotation.

The text itself stands in the pod template. So it belongs to its revision, and every engine of a revision reads the same
one, whatever the spec says by then; an object of its own would have to be kept as long as any revision that names it.
"""

from __future__ import annotations

from typing import Final

from blade_operator.model.objects import Object
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import CHAT_TEMPLATE

VOLUME: Final = "chat-template"
FOLDER: Final = "/etc/bladellm-chat-template"
FILE: Final = "chat_template.jinja"


def template_annotations(service: LLMService) -> dict[str, str]:
    """The annotation of the pod that holds the text."""
    template = service.spec.engine.chat_template
    return {CHAT_TEMPLATE: template.inline} if template and template.inline is not None else {}


def template_volumes(service: LLMService) -> list[Object]:
    """The pod's volume with the file."""
    template = service.spec.engine.chat_template
    if template is None:
        return []
    if reference := template.config_map_key_ref:
        return [
            {"name": VOLUME, "configMap": {"name": reference.name, "items": [{"key": reference.key, "path": FILE}]}}
        ]
    item = {"path": FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{CHAT_TEMPLATE}']"}}
    return [{"name": VOLUME, "downwardAPI": {"items": [item]}}]


def template_mounts(service: LLMService) -> list[Object]:
    """The mount of that volume in a container."""
    return [{"name": VOLUME, "mountPath": FOLDER, "readOnly": True}] if service.spec.engine.chat_template else []


def template_flags(service: LLMService) -> list[str]:
    """The flags that name the template file."""
    return ["--chat_template", f"{FOLDER}/{FILE}"] if service.spec.engine.chat_template else []
