"""Status of the check and the download, before an engine starts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from operator_support.mini_cluster import engine_state
from operator_support.status import condition, make_routers_ready, reconciled_status, starting

from blade_protocol.check import CheckItem
from blade_protocol.fetch import FetchReport

HUB = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B"}}
PASS = CheckItem(name="check_shm", status="PASS", detail="shared Memory is 1073741824 bytes")
FITS = CheckItem(name="check_memory_fit", status="PASS", detail="float32: 1.84Gi of 4Gi")
TOO_BIG = CheckItem(
    name="check_memory_fit", status="FAILED", detail="float32: 9.1Gi of 4Gi; set --kv_cache_bytes 536870912"
)


def test_a_failing_check_keeps_its_item_and_numbers_and_is_the_reason() -> None:
    cluster = starting()
    [pod] = cluster.engine_pods
    make_routers_ready(cluster)
    cluster.check(pod, PASS, TOO_BIG, exit_code=1)
    status = reconciled_status(cluster)
    name = pod["metadata"]["name"]
    note = "(--kv_cache_bytes is spec.engine.kvCacheBytes)"
    said = f"pod {name}: check_memory_fit FAILED: {TOO_BIG.detail} {note}"
    assert condition(status, "PreflightPassed") == ("False", "CheckFailed", said)
    assert condition(status, "ModelFits") == ("False", "DoesNotFit", f"{TOO_BIG.detail} {note}")
    assert condition(status, "Ready") == ("False", "CheckFailed", said)
    assert status["phase"] == "Failed"
    assert status["failures"][0]["lastLog"] == f"check_memory_fit FAILED: {TOO_BIG.detail}"
    assert status["preflight"] == [
        {
            "pod": name, "pass": 1, "warning": 0, "failed": 1,
            "items": [
                {"name": "check_shm", "status": "PASS", "detail": PASS.detail},
                {"name": "check_memory_fit", "status": "FAILED", "detail": TOO_BIG.detail},
            ],
        }
    ]  # fmt: skip
    assert ("Warning", "CheckFailed") in [(event.type, event.reason) for event in cluster.events]
    # It is run again after the back-off: the report of the last run stays until it ends.
    [check] = [entry for entry in pod["status"]["initContainerStatuses"] if entry["name"] == "check"]
    check |= {"state": {"running": {}}}
    assert condition(reconciled_status(cluster), "PreflightPassed")[:2] == ("False", "CheckFailed")
    cluster.become_ready(pod)
    assert condition(reconciled_status(cluster), "Ready")[0] == "True"


def test_a_failed_check_without_a_report_is_still_reported() -> None:
    cluster = starting()
    cluster.terminate_container(cluster.engine_pods[0], "check", 2, "blade_llm_check: unknown item 'x'")
    status = reconciled_status(cluster)
    assert condition(status, "PreflightPassed")[2].endswith("blade_llm_check ended with exit 2")
    assert status["failures"][0]["lastLog"] == "blade_llm_check: unknown item 'x'"


def test_warnings_and_no_check_at_all() -> None:
    cluster = starting({"check": {"mode": "Warn"}})
    cluster.check(cluster.engine_pods[0], CheckItem(name="check_shm", status="WARNING", detail="little"))
    assert condition(reconciled_status(cluster), "PreflightPassed") == (
        "True",
        "PassedWithWarnings",
        "1 item with a warning",
    )
    assert condition(reconciled_status(starting({"check": {"mode": "Off"}})), "PreflightPassed")[:2] == (
        "True",
        "CheckOff",
    )


def test_a_download_that_runs_fails_and_succeeds() -> None:
    cluster = starting(HUB)
    [pod] = cluster.engine_pods
    [fetch, _] = pod["status"]["initContainerStatuses"]
    fetch["state"] = {"running": {}}
    status = reconciled_status(cluster)
    assert condition(status, "ModelCached") == ("False", "Downloading", "hf://Qwen/Qwen2.5-0.5B is being downloaded")
    assert condition(status, "Ready")[1] == "Downloading"
    failed = FetchReport(model="hf://Qwen/Qwen2.5-0.5B", ready=False, message="no such model; check the name")
    cluster.terminate_container(pod, "fetch", 1, msgspec.json.encode(failed).decode())
    status = reconciled_status(cluster)
    name = pod["metadata"]["name"]
    assert condition(status, "ModelCached") == (
        "False", "DownloadFailed", f"pod {name}: no such model; check the name (spec.model.uri)",
    )  # fmt: skip
    assert status["failures"][0]["lastLog"] == "no such model; check the name"
    done = FetchReport(model="hf://Qwen/Qwen2.5-0.5B", ready=True, folder="/models/x", files=9, bytes=999_000_000)
    cluster.terminate_container(pod, "fetch", 0, msgspec.json.encode(done).decode())
    assert condition(reconciled_status(cluster), "ModelCached") == (
        "True", "Downloaded", "hf://Qwen/Qwen2.5-0.5B is in the cache (953Mi, 9 files)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("set HF_TOKEN to a token that may read it", "HF_TOKEN is spec.model.tokenSecretRef"),
        ("model a/b has no revision 'v9' on https://huggingface.co", "spec.model.revision"),
        ("set MODELSCOPE_API_TOKEN to credentials", "MODELSCOPE_API_TOKEN is spec.model.tokenSecretRef"),
        (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to others",
            "AWS_ACCESS_KEY_ID is spec.model.credentialsSecretRef",
        ),
        ("set OCI_USERNAME and OCI_PASSWORD, or", "OCI_USERNAME is spec.model.credentialsSecretRef"),
        ("x; check AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_S3 is spec.engine.env"),
        ("--draft.model hf://a/c: no such model", "--draft.model is spec.engine.speculative.draftModel"),
        ("set HF_ENDPOINT to a mirror, not http://x?HF_ENDPOINTS", "HF_ENDPOINT is spec.engine.env"),
    ],
)
def test_a_failed_download_names_the_field(words: str, field: str) -> None:
    cluster = starting(HUB)
    report = FetchReport(model="a/b", ready=False, message=words)
    cluster.terminate_container(cluster.engine_pods[0], "fetch", 1, msgspec.json.encode(report).decode())
    assert condition(reconciled_status(cluster), "ModelCached")[2].endswith(f": {words} ({field})")


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"uri": "modelscope://a/b", "tokenSecretRef": {"name": "nope"}}, "spec.model.tokenSecretRef"),
        ({"uri": "s3://models/b", "credentialsSecretRef": {"name": "nope"}}, "spec.model.credentialsSecretRef"),
        ({"uri": "oci://ghcr.io/a/b", "credentialsSecretRef": {"name": "nope"}}, "spec.model.credentialsSecretRef"),
    ],
)
def test_a_missing_secret_names_its_field(model: dict[str, Any], field: str) -> None:
    cluster = starting({"model": model})
    [fetch, *_] = cluster.engine_pods[0]["status"]["initContainerStatuses"]
    waiting = {"message": 'secret "nope" not found', "reason": "CreateContainerConfigError"}
    fetch |= {"ready": False, "state": {"waiting": waiting}}
    said = condition(reconciled_status(cluster), "ModelCached")
    assert said[:2] == ("False", "CreateContainerConfigError")
    assert said[2].endswith(f'fetch cannot start: secret "nope" not found ({field})')


@pytest.mark.parametrize(
    ("item", "status", "field"),
    [
        ("check_shm", "WARNING", "spec.engine.shmSize"),
        ("check_pb_env", "FAILED", "spec.engine.env"),
        ("check_model", "FAILED", "spec.model.uri"),
        ("check_memory_fit", "FAILED", "spec.engine.resources.limits.memory"),
    ],
)
def test_an_item_of_the_check_names_the_field(item: str, status: Literal["WARNING", "FAILED"], field: str) -> None:
    cluster = starting()
    cluster.check(cluster.engine_pods[0], CheckItem(name=item, status=status, detail="it is so"), exit_code=1)
    assert condition(reconciled_status(cluster), "PreflightPassed")[2].endswith(
        f": {item} {status}: it is so ({field})"
    )


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--chat_template /etc/x.jinja, line 1: unexpected end", "--chat_template is spec.engine.chatTemplate"),
        ("no place for tools; leave out --tool_call_parser x", "--tool_call_parser is spec.engine.toolCallParser"),
        ("no end; leave out --enable_json_warmup", "--enable_json_warmup is spec.engine.jsonWarmup"),
        (
            "its tokenizer is another one; choose a smaller model as --draft.model.",
            "--draft.model is spec.engine.speculative.draftModel",
        ),
        ("the model pools by max_tokens; give --pooling last, mean or cls", "--pooling is spec.engine.pooling"),
    ],
)
def test_options_that_the_model_does_not_support_name_their_fields(words: str, note: str) -> None:
    cluster = starting()
    item = CheckItem(name="check_model", status="WARNING", detail=words)
    cluster.check(cluster.engine_pods[0], item, exit_code=1)
    assert condition(reconciled_status(cluster), "PreflightPassed")[2].endswith(
        f": check_model WARNING: {words} ({note})"
    )


def test_an_unreadable_model_is_the_only_problem_reported() -> None:
    cluster = starting()
    missing = "model folder /models/x does not exist"
    memory = CheckItem(name="check_memory_fit", status="FAILED", detail=missing)
    files = CheckItem(name="check_model", status="FAILED", detail=missing)
    cluster.check(cluster.engine_pods[0], memory, files, exit_code=1)
    status = reconciled_status(cluster)
    assert condition(status, "PreflightPassed")[2].endswith(f"check_model FAILED: {missing} (spec.model.uri)")
    assert condition(status, "ModelFits")[:2] == ("Unknown", "NotReported")


def test_the_check_estimates_until_the_engine_has_measured() -> None:
    cluster = starting()
    [pod] = cluster.engine_pods
    assert condition(reconciled_status(cluster), "ModelFits") == (
        "Unknown",
        "NotReported",
        "no engine has reported yet",
    )
    cluster.check(pod, PASS, FITS)
    status = reconciled_status(cluster)
    assert condition(status, "ModelFits") == ("True", "Estimated", FITS.detail)
    assert "fit" not in status
    cluster.engines[pod["metadata"]["name"]] = engine_state(pod)
    assert condition(reconciled_status(cluster), "ModelFits")[:2] == ("True", "Measured")


def test_a_check_that_failed_twice_is_no_progress_while_it_tries_again() -> None:
    cluster = starting()
    [pod] = cluster.engine_pods
    for _ in range(2):
        cluster.check(pod, TOO_BIG, exit_code=1)
    before = reconciled_status(cluster)
    pod["status"]["initContainerStatuses"][0]["state"] = {"running": {}}
    after = reconciled_status(cluster)
    for status in (before, after):
        assert condition(status, "Progressing")[:2] == ("False", "Stalled")
        assert condition(status, "Degraded")[:2] == ("True", "CrashLoopBackOff")


def test_events_of_a_download() -> None:
    cluster = starting(HUB)
    [pod] = cluster.engine_pods
    cluster.events.clear()
    pod["status"]["initContainerStatuses"][0]["state"] = {"running": {}}
    reconciled_status(cluster)
    cluster.terminate_container(pod, "fetch", 1, "no route to host")
    reconciled_status(cluster)
    cluster.terminate_container(pod, "fetch", 0)
    reconciled_status(cluster)
    recorded = [(event.type, event.reason) for event in cluster.events if event.reason != "Stalled"]
    assert recorded == [
        ("Normal", "Downloading"), ("Warning", "CrashLoopBackOff"), ("Warning", "DownloadFailed"),
        ("Normal", "ModelCached"),
    ]  # fmt: skip
