"""The examples of docs/autoscaling-hpa.md are of metrics that there are, and read what the API responds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from blade_operator.external_metrics import documents
from blade_operator.external_metrics.catalog import METRICS
from blade_operator.external_metrics.selector import only, parse
from blade_protocol.labels import API_VERSION, KIND, NAME

PAGE = (Path(__file__).parents[3] / "docs" / "autoscaling-hpa.md").read_text()


def _examples() -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_there_is_an_example_of_each_metric() -> None:
    whole = [each for each in _examples() if isinstance(each, dict) and each.get("kind") == "HorizontalPodAutoscaler"]
    lists = [each["spec"]["metrics"] for each in whole] + [each for each in _examples() if isinstance(each, list)]
    metrics = [metric for each in lists for metric in each]
    assert {metric["external"]["metric"]["name"] for metric in metrics} == METRICS.keys()
    for metric in metrics:
        external = metric["external"]
        assert external["metric"]["selector"] == {"matchLabels": {NAME: "qwen"}}
        kind = external["target"]["type"]
        assert set(external["target"]) == {"type", kind[0].lower() + kind[1:]}
    [autoscaler] = whole
    assert autoscaler["spec"]["scaleTargetRef"] == {"apiVersion": API_VERSION, "kind": KIND, "name": "qwen"}


def test_the_table_lists_every_metric() -> None:
    assert re.findall(r"^\| `(bladellm_\w+)` \|", PAGE, re.MULTILINE) == [
        "bladellm_in_flight_requests",
        "bladellm_queued_requests",
        "bladellm_ttft_p90_seconds",
        "bladellm_tpot_p90_seconds",
        "bladellm_kv_cache_usage",
    ]
    assert set(re.findall(r"\bbladellm_\w+", PAGE)) == METRICS.keys()


def test_kedas_scaler_reads_a_response() -> None:
    [scaled] = [each for each in _examples() if isinstance(each, dict) and each.get("kind") == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    [selector] = parse_qs(url.query)["labelSelector"]
    assert only(parse(selector), NAME) == {scaled["spec"]["scaleTargetRef"]["name"]}
    _, _, group, version, _, _, metric = url.path.split("/")
    assert (group, version, metric in METRICS) == (documents.OWN_GROUP, documents.VERSION, True)
    [rule] = [
        rule for each in _examples() if isinstance(each, dict) and each.get("kind") == "Role" for rule in each["rules"]
    ]
    assert (rule["apiGroups"], rule["verbs"]) == ([group], ["list"])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    found: Any = documents.value_list(group, [documents.metric_value(metric, {NAME: "qwen"}, at, 3)])
    for step in trigger["metadata"]["valueLocation"].split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    assert found == "3"
