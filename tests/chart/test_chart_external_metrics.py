"""External metrics in the chart: off unless wanted, and what is granted for them is no more than that."""

from __future__ import annotations

from chart_support.files import CHART, schema, values

from blade_operator.external_metrics.documents import GROUPS, VERSION


def test_they_are_off_by_default_and_in_the_group_that_autoscalers_read() -> None:
    assert values()["externalMetrics"]["enabled"] is False
    allowed = schema()["properties"]["externalMetrics"]["properties"]["group"]["enum"]
    assert (values()["externalMetrics"]["group"], tuple(allowed)) == (GROUPS[0], GROUPS)


def test_the_only_right_they_take_is_to_ask_who_may_read() -> None:
    text = (CHART / "templates/externalmetrics.yaml").read_text()
    assert text.startswith("{{- if .Values.externalMetrics.enabled }}\n")
    assert text.count("verbs:") == 1
    assert "resources: [subjectaccessreviews]\n    verbs: [create]" in text
    assert "name: extension-apiserver-authentication-reader" in text
    assert f"version: {VERSION}\n" in text
    assert "insecureSkipTLSVerify" not in text
