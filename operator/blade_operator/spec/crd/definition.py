"""The CustomResourceDefinitions: names, printer columns and subresources around the schema."""

from __future__ import annotations

import re
from typing import Any, Final

from blade_operator.spec.crd.schema import adapter_schema, service_schema
from blade_protocol.labels import (
    ADAPTER_KIND,
    ADAPTER_PLURAL,
    ADAPTER_SHORT_NAME,
    ADAPTER_SINGULAR,
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    VERSION,
)

PRINTER_COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
    {"name": "Desired", "type": "integer", "jsonPath": ".status.desiredReplicas"},
    {"name": "Ready#", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "GPUs", "type": "integer", "jsonPath": ".spec.engine.gpus.count"},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Adapters", "type": "string", "jsonPath": ".status.adaptersReady", "priority": 1},
    {"name": "Cost/M", "type": "string", "jsonPath": ".status.cost.perMillionTokens", "priority": 1},
    {"name": "Revision", "type": "string", "jsonPath": ".status.revision.current", "priority": 1},
)


ADAPTER_COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Engines", "type": "string", "jsonPath": ".status.engines"},
    {"name": "URI", "type": "string", "jsonPath": ".spec.uri"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Model", "type": "string", "jsonPath": ".spec.model", "priority": 1},
    {
        "name": "Message",
        "type": "string",
        "jsonPath": '.status.conditions[?(@.type=="Ready")].message',
        "priority": 1,
    },
)


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of LLMService, for ``kubectl apply``."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    names = {"plural": PLURAL, "singular": SINGULAR, "shortNames": [SHORT_NAME], "categories": ["all", "ai"]}
    return _definition(KIND, names, PRINTER_COLUMNS, service_schema(), {"scale": scale})


def adapter_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of LoRAAdapter."""
    names = {
        "plural": ADAPTER_PLURAL,
        "singular": ADAPTER_SINGULAR,
        "shortNames": [ADAPTER_SHORT_NAME],
        "categories": ["ai"],
    }
    return _definition(ADAPTER_KIND, names, ADAPTER_COLUMNS, adapter_schema(), {})


LONG_DESCRIPTION: Final = 60
"""Characters from which on a field's description is cut to its first sentence, and this to what is before a semicolon;
the reference page has all of it."""
_FLAG: Final = re.compile(r" \(`--[^()]*`\)|(?<=\()`--[^`]*`; ")
"""The engine's or router's flag that a field sets, alone in parentheses or before something else."""
_FIRST_SENTENCE: Final = re.compile(r".*?(?<!e\.g)\.(?= [A-Z0-9`\"]|$)", re.DOTALL)
_FIRST_CLAUSE: Final = re.compile(r"[^;`(]*(?:(?:`[^`]*`|\([^)]*\))[^;`(]*)*(?=;)")


def shortened(schema: Any) -> Any:
    """A schema for the CRD, which clients fetch again and again: descriptions name no flags, and long ones are their
    first sentences, or even clauses. The reference page has all of them."""
    if isinstance(schema, list):
        return [shortened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    short = {key: shortened(value) for key, value in schema.items()}
    if isinstance(text := short.get("description"), str):
        text = _FLAG.sub("", text)
        if len(text) > LONG_DESCRIPTION and (sentence := _FIRST_SENTENCE.match(text)):
            text = sentence[0]
        if len(text) > LONG_DESCRIPTION and (clause := _FIRST_CLAUSE.match(text)):
            text = f"{clause[0]}."
        short["description"] = text
    return short


def _definition(
    kind: str,
    names: dict[str, Any],
    columns: tuple[dict[str, Any], ...],
    schema: dict[str, Any],
    subresources: dict[str, Any],
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", **names},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in columns],
                    "schema": {"openAPIV3Schema": shortened(schema)},
                    "subresources": {"status": {}, **subresources},
                }
            ],
        },
    }
