"""The doctor's findings and its bundle: what is in it, what is not, and that it is bounded."""

from __future__ import annotations

import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from operator_support.fake_cluster import fake_cluster, llm, pod

from blade_operator.kubectl import main as program
from blade_operator.kubectl.commands import status
from blade_operator.kubectl.diagnosis import bundle as bundling
from blade_operator.kubectl.diagnosis.findings import find
from blade_operator.kubectl.output import STYLES
from blade_operator.model.objects import Object

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HUSH = "hush-hush-hush"


def _event(kind: str, message: str, seen: str = "2026-01-01T23:59:00Z", name: str = "qwen-engine-b") -> Object:
    return {
        "kind": "Event",
        "metadata": {"name": f"e{abs(hash(message))}", "namespace": "team"},
        "type": kind,
        "reason": "Failed",
        "message": message,
        "lastTimestamp": seen,
        "count": 3,
        "involvedObject": {"kind": "Pod", "name": name},
    }


def test_a_service_that_is_well_has_no_findings() -> None:
    well = [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False"}]
    service = llm(phase="Ready", desiredReplicas=1, conditions=well)
    assert find([service], [pod("r", "router"), pod("e", "engine")], [_event("Normal", "Pulled")], NOW) == []


@pytest.mark.parametrize("reason", ["Sleeping", "Waking", "ScaledToZero"])
def test_a_service_at_rest_has_no_findings(reason: str) -> None:
    conditions = [{"type": "Ready", "status": "False" if reason == "ScaledToZero" else "True", "reason": reason}]
    conditions += [{"type": "WorkersReady", "status": "False", "reason": reason, "message": "no request since 8:00"}]
    service = llm(phase=reason, desiredReplicas=0, conditions=conditions)
    assert find([service], [pod("r", "router")], [], NOW) == []
    (line, style), *_ = status._conditions(conditions[1:])
    assert (line, style) == (f"… WorkersReady is False ({reason}): no request since 8:00", STYLES["warn"])


def test_every_finding_has_its_advice_and_errors_come_first() -> None:
    failure = {"pod": "e", "container": "engine", "reason": "OOMKilled", "message": "out of memory", "restarts": 4}
    warned = {"pod": "e", "items": [{"name": "check_shm", "status": "WARNING", "detail": "64 MiB"}]}
    conditions = [{"type": "SpecValid", "status": "False", "reason": "InvalidSpec", "message": "spec.x: no"}]
    conditions += [{"type": "Contested", "status": "True", "reason": "Two", "message": "a and b"}]
    service = llm(
        phase="Degraded",
        desiredReplicas=1,
        conditions=conditions,
        failures=[failure],
        preflight=[warned],
        adapters=[{"name": "poet", "reason": "rank 64 is more than 32"}],
    )
    service["metadata"]["generation"] = 2
    restarted = {"ready": True, "restartCount": 5, "state": {"running": {}}}
    found = find([service], [pod("e", "engine"), pod("f", "engine", restarted)], [_event("Warning", "no image")], NOW)
    levels = [each.level for each in found]
    assert levels == sorted(levels)
    problems = "\n".join(each.problem for each in found)
    for words in (
        "the operator has not seen its latest change",
        "OOMKilled, 4 restarts: out of memory",
        "SpecValid (InvalidSpec): spec.x: no",
        "Contested (Two): a and b",
        "check_shm: 64 MiB",
        "rank 64 is more than 32",
        "it has no router pods",
        "container engine was restarted 5 times",
        "Failed: no image (3 times)",
    ):
        assert words in problems
    assert all(each.advice for each in found)
    assert "kubectl llm logs qwen" in next(each.advice for each in found if "OOMKilled" in each.problem)


def test_old_events_are_no_findings() -> None:
    service = llm(phase="Ready", conditions=[{"type": "Ready", "status": "True"}])
    assert find([service], [pod("r", "router")], [_event("Warning", "x", "2026-01-01T20:00:00Z")], NOW) == []


def test_the_bundle_has_everything_but_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "LOG_BYTES", 4096)
    with fake_cluster(tmp_path) as cluster:
        labels = {"serving.bladellm.io/name": "qwen"}
        secret: Object = {
            "kind": "Secret",
            "metadata": {"name": "keys", "namespace": "team", "labels": labels},
            "data": {"keys": HUSH},
        }
        engine = pod("qwen-engine-b", "engine", args=["--api_key", HUSH], env=[{"name": "HF_TOKEN", "value": HUSH}])
        cluster.put(
            llm(phase="Ready", conditions=[{"type": "Ready", "status": "True"}]),
            engine,
            pod("qwen-router-a", "router"),
            secret,
            _event("Warning", f"GET https://u:{HUSH}@hub/x?token={HUSH}"),
            _event("Warning", "of somebody else", name="other"),
        )
        cluster.logs["qwen-engine-b", "engine", False] = f"Authorization: Bearer {HUSH}\n".encode() * 2000
        cluster.refused["/configmaps"] = (403, f"forbidden token={HUSH}")
        argv = ["doctor", "--output_dir", str(tmp_path), "--kubeconfig", str(cluster.kubeconfig)]
        assert program.main(argv) == 0
    said = capsys.readouterr()
    assert HUSH not in said.out + said.err
    [path] = tmp_path.glob("llm-doctor-team-*.tar.gz")
    assert path.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as archive:
        files = {
            each.name.partition("/")[2]: archive.extractfile(each).read().decode()  # type: ignore[union-attr]
            for each in archive.getmembers()
        }
    assert not [name for name, text in files.items() if HUSH in text]
    assert "keys: <redacted>" in files["objects/team/Secret/keys.yaml"]
    assert len(files["logs/qwen-engine-b/engine.log"]) <= 4096
    assert json.loads(files["versions.json"])["kubernetes"] == "v1.34.0"
    assert "of somebody else" not in files["events.txt"]
    missing = files["missing.txt"]
    for words in (
        "ConfigMap: forbidden",
        "logs/qwen-router-a/router.log",
        "metrics/qwen-engine-b",
        "operator: no pods",
    ):
        assert words in missing


def test_the_bundle_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "MOST_BYTES", 100)
    made = bundling.Bundle(tmp_path / "b.tar.gz")
    made.add("one", "x" * 90)
    made.add("two", "x" * 90)
    made.close()
    with tarfile.open(made.path) as archive:
        assert [each.name for each in archive.getmembers()] == ["b/one", "b/missing.txt"]
    assert made.missing == ["two: the bundle has 100 bytes already"]
