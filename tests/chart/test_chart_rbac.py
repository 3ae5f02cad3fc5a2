"""What the operator may do: as documented, exactly enough for what it renders and grants, nothing that reads Secrets.

What it renders is taken from the golden files of tests/operator. That each verb is also used is seen in the audit log
of the API server, by the end-to-end tests.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from chart_support.files import CHART, ROOT, rules, table
from operator_support import golden
from operator_support.rendering import CASES

Permission = tuple[str, str, str]
"""API group, resource, verb."""


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    return [obj for case in sorted(CASES) for obj in golden.objects(case)]


def permissions(granted: list[dict[str, list[str]]]) -> set[Permission]:
    return {
        (group, resource, verb)
        for rule in granted
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def resource(obj: dict[str, Any]) -> tuple[str, str]:
    """API group and plural name."""
    group, _, _ = obj["apiVersion"].rpartition("/")
    kind = obj["kind"].lower()
    return group, f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def test_the_documentation_lists_exactly_these() -> None:
    rows = table((ROOT / "docs/install.md").read_text(), "| API group | Resources | Verbs | Why |")
    documented = [
        {"apiGroups": [group.replace("core", "")], "resources": names.split(", "), "verbs": verbs.split()}
        for group, names, verbs, _ in rows
    ]
    assert all(why for *_, why in rows)
    assert permissions(documented) == permissions(rules())


def test_no_rule_says_the_same_twice_and_none_says_everything() -> None:
    flat = [p for rule in rules() for p in permissions([rule])]
    assert len(flat) == len(set(flat))
    assert not [p for p in flat if "*" in p]


def test_secrets_are_written_and_never_read() -> None:
    # No patch: the answer to one, an empty one too, shows the whole Secret.
    assert {verb for _, name, verb in permissions(rules()) if name == "secrets"} == {
        "create",
        "update",
        "list",
        "watch",
    }
    # Without the file that watchKeys adds:
    always = yaml.safe_load((CHART / "files/rules.yaml").read_text())
    assert {verb for _, name, verb in permissions(always) if name == "secrets"} == {"create", "update"}


def test_a_router_may_read_the_secret_of_its_keys_and_no_other(rendered: list[dict[str, Any]]) -> None:
    of_secrets = [
        rule for obj in rendered if obj["kind"] == "Role" for rule in obj["rules"] if "secrets" in rule["resources"]
    ]
    assert of_secrets
    assert all(len(rule["resourceNames"]) == 1 for rule in of_secrets)


def test_our_own_kinds_are_never_written_and_only_their_status_patched() -> None:
    own = {(name, verb) for group, name, verb in permissions(rules()) if group == "serving.bladellm.io"}
    kinds = "llmservices", "loraadapters"
    assert own == {(kind, verb) for kind in kinds for verb in ("list", "watch")} | {
        (f"{kind}/status", "patch") for kind in kinds
    }


def test_what_is_rendered_may_be_applied_and_nothing_else_made(rendered: list[dict[str, Any]]) -> None:
    held = permissions(rules())
    made = {resource(obj) for obj in rendered}
    assert {(group, name) for group, name, verb in held if verb == "create"} == made | {("", "events")}
    # Server-side apply is a patch; a Secret is made or replaced, since the answer to a patch shows all of it.
    assert {(*what, "patch") for what in made if what != ("", "secrets")} <= held


def test_the_operator_holds_what_it_grants_to_routers(rendered: list[dict[str, Any]]) -> None:
    roles = [obj for obj in rendered if obj["kind"] == "Role"]
    assert roles
    for role in roles:
        assert permissions(role["rules"]) <= permissions(rules()), role["metadata"]["name"]


def test_what_is_held_only_to_be_granted_is_granted(rendered: list[dict[str, Any]]) -> None:
    granted = {p for obj in rendered if obj["kind"] == "Role" for p in permissions(obj["rules"])}
    only_to_grant = {p for p in permissions(rules()) if p[0] == "discovery.k8s.io" or p[1:] == ("secrets", "list")}
    assert only_to_grant <= granted


def test_templates_add_no_rules_of_their_own() -> None:
    text = (CHART / "templates/rbac.yaml").read_text()
    assert text.count("verbs:") == 4, (
        "own-namespace rules: lease, key, and creating each; all others are in files/rules.yaml"
    )
    assert '"*"' not in text
