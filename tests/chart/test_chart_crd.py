"""The chart's CRDs are those in crds/, as templates that Helm upgrades and never deletes."""

from __future__ import annotations

import yaml
from chart_support.files import CHART, ROOT

from blade_operator.spec.crd.definition import custom_resource_definition
from blade_operator.spec.crd.generate import chart_template


def unwrap(template: str) -> str:
    """What Helm renders of a generated CRD template."""
    comment, opening, *body, closing = template.splitlines()
    assert comment.startswith("#")
    assert (opening, closing) == ("{{- if .Values.crd.install }}", "{{- end }}")
    return "\n".join(body).replace('{{ "{{" }}', "{{")


def test_the_chart_has_the_crds_of_crds() -> None:
    rendered = [yaml.safe_load(unwrap(path.read_text())) for path in sorted((CHART / "templates").glob("crd*.yaml"))]
    for each in rendered:
        assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    plain = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    assert len(plain) == 2
    assert sorted(rendered, key=str) == sorted(plain, key=str)


def test_braces_in_descriptions_reach_the_cluster() -> None:
    crd = custom_resource_definition()
    crd["spec"]["names"]["singular"] = "a {{ template }}"
    template = chart_template(crd)
    # Only Helm's own actions open with two braces now.
    assert template.count("{{") == template.count('{{ "{{" }}') * 2 + 2 == 4
    assert yaml.safe_load(unwrap(template))["spec"]["names"]["singular"] == "a {{ template }}"


def test_helm_has_no_second_copy() -> None:
    assert not (CHART / "crds").exists(), "Helm never upgrades a crds/ folder; the CRD is a template"
