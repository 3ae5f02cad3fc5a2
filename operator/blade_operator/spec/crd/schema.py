"""Structural OpenAPI schemas, as CustomResourceDefinitions demand them, from the models.

Pydantic's JSON schema uses references, titles and ``anyOf … null``, which a CRD may not: here they are resolved,
and defaults and rules are put in.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from blade_operator.spec.adapters.fields import LoRAAdapterSpec
from blade_operator.spec.adapters.status_fields import LoRAAdapterStatus
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.rules.change import CHANGE_RULES, ChangeRule
from blade_operator.spec.rules.rule import Rule
from blade_operator.spec.rules.service import RULES
from blade_operator.spec.status_fields import LLMServiceStatus

Schema = dict[str, Any]
_DROPPED = ("title", "$defs")
_BOUNDS = ("maxLength", "maxItems")
"""The API server needs them for the cost of rules, of which a status has none; who writes it bounds what it writes."""


def service_schema() -> Schema:
    """The ``openAPIV3Schema`` of an LLMService."""
    root: Schema = {
        "type": "object",
        "description": "A language model served over the OpenAI API: engine replicas and a router in front.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this API."},
            "kind": {"type": "string", "description": "LLMService."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},  # named for its rule
            "spec": structural(LLMServiceSpec, defaults=True),
            "status": structural(LLMServiceStatus, defaults=False),
        },
    }
    rules: tuple[Rule | ChangeRule, ...] = (*RULES, *CHANGE_RULES)
    for rule in rules:
        place = root
        for step in rule.at:
            place = place["properties"][step]
        place.setdefault("x-kubernetes-validations", []).append(rule.schema)
    return root


def adapter_schema() -> Schema:
    """The ``openAPIV3Schema`` of a LoRAAdapter."""
    return {
        "type": "object",
        "description": "A LoRA adapter for the LLMServices of its namespace whose `adapterSelector` selects it.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this API."},
            "kind": {"type": "string", "description": "LoRAAdapter."},
            "metadata": {"type": "object"},
            "spec": structural(LoRAAdapterSpec, defaults=True),
            "status": structural(LoRAAdapterStatus, defaults=False),
        },
    }


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of one model; ``defaults`` says whether the API server shall fill them in."""
    raw = model.model_json_schema(by_alias=True)
    return _clean(raw, raw.get("$defs", {}), defaults)


def _clean(node: Mapping[str, Any], definitions: Mapping[str, Any], defaults: bool) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        # A field's own description says more than its type's.
        return _clean({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions, defaults)
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        [only] = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        return _clean(
            {**only, **{k: v for k, v in node.items() if k not in ("anyOf", "default")}}, definitions, defaults
        )
    if "const" in node:
        node = {**{key: value for key, value in node.items() if key != "const"}, "enum": [node["const"]]}
    # Nothing in it is shared with another field: YAML would write an alias there.
    clean: Schema = {key: copy.deepcopy(value) for key, value in node.items() if key not in _DROPPED}
    if not defaults:
        clean = {key: value for key, value in clean.items() if key not in _BOUNDS}
    if not defaults or clean.get("default") in ([], (), {}):
        clean.pop("default", None)
    if isinstance(clean.get("default"), tuple):
        clean["default"] = list(clean["default"])
    if isinstance(clean.get("additionalProperties"), bool):
        del clean["additionalProperties"]  # structural schemas know their fields anyway
    if "additionalProperties" in clean:
        clean["additionalProperties"] = _clean(clean["additionalProperties"], definitions, defaults)
    if "description" in clean:
        clean["description"] = " ".join(clean["description"].split())
    if "items" in clean:
        clean["items"] = _clean(clean["items"], definitions, defaults)
        clean["items"].pop("description", None)  # the list's says it
    if "properties" in clean:
        clean["properties"] = {
            name: _property(child, name in clean.get("required", ()), definitions, defaults)
            for name, child in clean["properties"].items()
        }
    return clean


def _property(node: Mapping[str, Any], required: bool, definitions: Mapping[str, Any], defaults: bool) -> Schema:
    schema = _clean(node, definitions, defaults)
    optional = any(choice.get("type") == "null" for choice in node.get("anyOf", ()))
    if defaults and "properties" in schema and not required and not optional:
        # Defaults inside an object are only filled in when the object is there; and the server judges this one by the
        # object's rules, so it has to be whole.
        inner = schema["properties"].items()
        schema["default"] = {name: copy.deepcopy(child["default"]) for name, child in inner if "default" in child}
    return schema
