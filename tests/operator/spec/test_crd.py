"""The CRD: structural as an API server requires, small, bounded, and up to date with the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from operator_support.mini_cluster import service

from blade_operator.spec.crd import generate
from blade_operator.spec.crd.definition import custom_resource_definition
from blade_operator.spec.rules.change import CHANGE_RULES
from blade_operator.spec.rules.service import RULES

ALLOWED = {
    "additionalProperties", "anyOf", "default", "description", "enum", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minimum", "pattern", "properties", "required", "type",
    "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
}  # fmt: skip

PRESERVED = "x-kubernetes-preserve-unknown-fields"


@pytest.fixture(scope="module")
def version() -> dict[str, Any]:
    [only] = custom_resource_definition()["spec"]["versions"]
    return dict(only)


def schemas(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    if "items" in node:
        yield from schemas(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from schemas(node["additionalProperties"], f"{path}[]")


def test_the_schema_is_structural(version: dict[str, Any]) -> None:
    for path, node in schemas(version["schema"]["openAPIV3Schema"]):
        assert set(node) <= ALLOWED, (path, set(node) - ALLOWED)
        if node.get("x-kubernetes-int-or-string"):
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert "type" not in node, path
            continue
        assert "anyOf" not in node, path
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert (node["type"] == "array") == ("items" in node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        if node.get("x-kubernetes-list-type") == "map":
            # Keys must always be there, or the server refuses the schema.
            assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"]), path


def test_every_string_and_list_is_bounded(version: dict[str, Any]) -> None:
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, node in schemas(spec, "spec"):
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum"} <= set(node), path


def test_every_field_is_described(version: dict[str, Any]) -> None:
    for path, node in schemas(version["schema"]["openAPIV3Schema"]):
        if path.startswith((".spec", ".status")) and not path.endswith("[]"):
            text = node.get("description", "")
            assert len(text) > 5, path
            # What is shortened is cut inside of nothing.
            assert text.count("(") == text.count(")"), path
            assert text.count("`") % 2 == 0, path
            assert text.endswith((".", ")", "`")), path


def test_yaml_readers_without_aliases_can_read_it() -> None:
    for text in generate.files().values():
        assert not re.search(r"(: |- )[&*]id\d+", text)


def test_defaults_are_valid_themselves_and_none_is_in_the_status(version: dict[str, Any]) -> None:
    for path, node in schemas(version["schema"]["openAPIV3Schema"]):
        if "default" in node:
            assert path.startswith(".spec"), path
            jsonschema.validate(node["default"], node)


def test_rules_are_in_the_schema_at_their_place(version: dict[str, Any]) -> None:
    found = {
        (path, rule["rule"])
        for path, node in schemas(version["schema"]["openAPIV3Schema"])
        for rule in node.get("x-kubernetes-validations", ())
    }
    assert found == {("".join(f".{step}" for step in rule.at), rule.cel) for rule in (*RULES, *CHANGE_RULES)}


def test_rules_name_fields_that_an_api_server_accepts(version: dict[str, Any]) -> None:
    # It takes no path through a list, and then refuses the whole definition.
    nodes = list(schemas(version["schema"]["openAPIV3Schema"]))
    named = {
        path + rule["fieldPath"]
        for path, node in nodes
        for rule in node.get("x-kubernetes-validations", ())
        if "fieldPath" in rule
    }
    assert named - {path for path, _ in nodes} == set()


def test_names_and_subresources(version: dict[str, Any]) -> None:
    crd = custom_resource_definition()
    assert crd["metadata"]["name"] == "llmservices.serving.bladellm.io"
    assert (crd["spec"]["names"]["shortNames"], crd["spec"]["names"]["categories"]) == (["llm"], ["all", "ai"])
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "Ready", "Reason", "Model", "Desired", "Ready#", "GPUs", "URL", "Age", "Adapters", "Cost/M", "Revision",
    ]  # fmt: skip


def test_a_service_with_its_defaults_passes_its_own_schema(version: dict[str, Any]) -> None:
    jsonschema.validate(service(), version["schema"]["openAPIV3Schema"])


def test_only_overlays_and_what_requests_may_say_is_stored_unseen(version: dict[str, Any]) -> None:
    unseen = [path for path, node in schemas(version["schema"]["openAPIV3Schema"]) if PRESERVED in node]
    assert unseen == [
        ".spec.engine.podTemplate.spec", ".spec.router.models[].defaults", ".spec.router.podTemplate.spec",
    ]  # fmt: skip


def test_the_object_is_small() -> None:
    """As the API server stores it and clients fetch it: an embedded PodSpec alone would take hundreds of KB."""
    text = next(text for path, text in generate.files().items() if path.parent.name == "crds")
    assert len(json.dumps(yaml.safe_load(text), separators=(",", ":")).encode()) < 64 * 1024


def test_generated_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_or_missing_file_is_noticed(tmp_path: Path) -> None:
    assert set(generate.stale(tmp_path)) == set(generate.files())
    for path, text in generate.files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert generate.stale(tmp_path) == []
    crd, *_ = generate.files()
    (tmp_path / crd).write_text((tmp_path / crd).read_text().replace("maximum: 1000", "maximum: 1001"))
    assert generate.stale(tmp_path) == [crd]
    assert yaml.safe_load(generate.files()[crd]) == custom_resource_definition()
