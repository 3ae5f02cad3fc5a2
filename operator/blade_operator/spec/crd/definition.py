"""The CustomResourceDefinition: names, printer columns and subresources around the schema."""

from __future__ import annotations

from typing import Any, Final

from blade_operator.spec.crd.schema import service_schema
from blade_protocol.labels import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION

PRINTER_COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
    {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Ready#", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "GPUs", "type": "integer", "jsonPath": ".spec.engine.gpus.count"},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Adapters", "type": "string", "jsonPath": ".status.adaptersReady", "priority": 1},
    {"name": "Revision", "type": "string", "jsonPath": ".status.revision.current", "priority": 1},
)


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of LLMService, for ``kubectl apply``."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all", "ai"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in PRINTER_COLUMNS],
                    "schema": {"openAPIV3Schema": service_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }
