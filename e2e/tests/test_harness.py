"""The harness's own decisions, which need no cluster."""

import hashlib
import json
import lzma
from pathlib import Path

import pytest

from e2e.cluster import Existing, NoCluster, OwnNode, find
from e2e.cluster.__main__ import split_command
from e2e.cluster.assets import AssetError, Assets
from e2e.cluster.layout import Layout
from e2e.support.audit import AuditLog
from e2e.support.chart import image_values
from e2e.support.images import Images, images
from e2e.support.report import Report, exit_code, read
from e2e.support.waiting import TimedOut, until


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def packed(folder: Path, content: bytes, digest: str) -> Assets:
    (folder / "helm.xz").write_bytes(lzma.compress(content))
    (folder / "SHA256SUMS").write_text(f"{digest}  helm\n")
    return Assets(folder)


def test_a_program_is_unpacked_once_and_is_executable(tmp_path: Path, cache: Path) -> None:
    assets = packed(tmp_path, b"#!/bin/sh\n", hashlib.sha256(b"#!/bin/sh\n").hexdigest())
    assets.unpack("helm")
    program = assets.bin / "helm"
    assert program.is_relative_to(cache)
    assert program.stat().st_mode & 0o111
    (tmp_path / "helm.xz").unlink()
    assets.unpack("helm")


def test_a_program_with_the_wrong_checksum_never_gets_its_name(tmp_path: Path, cache: Path) -> None:
    assets = packed(tmp_path, b"something else", "0" * 64)
    with pytest.raises(AssetError, match="checksum"):
        assets.unpack("helm")
    assert [path for path in assets.bin.iterdir() if path.name != "kubectl" and not path.is_symlink()] == []


def test_a_truncated_archive_is_reported_as_such(tmp_path: Path, cache: Path) -> None:
    assets = packed(tmp_path, b"x" * 1000, hashlib.sha256(b"x" * 1000).hexdigest())
    whole = (tmp_path / "helm.xz").read_bytes()
    (tmp_path / "helm.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AssetError, match="cannot unpack"):
        assets.unpack("helm")


def test_a_folder_without_sums_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="SHA256SUMS"):
        Assets(tmp_path).unpack("helm")


@pytest.mark.parametrize("name", ["", "Big", "a_b", "-a", "a-", "x" * 25, "../up"])
def test_names_that_cannot_be_a_clusters(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a cluster"):
        Layout(name)


def test_an_existing_cluster_goes_before_an_own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    both = {"E2E_KUBECONFIG": str(tmp_path / "config"), "KUBE_ASSETS": str(tmp_path)}
    assert isinstance(find(environment=both), Existing)
    assert isinstance(find(environment={"KUBE_ASSETS": str(tmp_path)}), OwnNode)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="KUBE_ASSETS"):
        find(environment={})


def test_arguments_of_kubectl_are_not_ours() -> None:
    assert split_command(["--name", "a", "kubectl", "-n"]) == (["--name", "a", "kubectl"], ["-n"])
    assert split_command(["exec", "--", "sh", "-c", "exec 1"]) == (["exec"], ["sh", "-c", "exec 1"])
    assert split_command(["up", "--kwok", "3"]) == (["up", "--kwok", "3"], [])


def test_in_ci_a_skipped_test_is_a_failure(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="a" name="ran"/>'
        '<testcase classname="a" name="left out"><skipped/></testcase></testsuite></testsuites>'
    )
    report = read(junit)
    assert report == Report(2, ("a::left out",))
    assert exit_code(0, report, ci=True) == 1
    assert exit_code(0, report, ci=False) == 0
    assert exit_code(0, Report(2, ()), ci=True) == 0
    assert exit_code(2, Report(2, ()), ci=True) == 2
    assert exit_code(0, read(tmp_path / "absent.xml"), ci=True) == 1


def test_images_come_from_the_environment_or_from_this_tree() -> None:
    assert images({"E2E_IMAGES": "engine=r:5000/e:1,operator=r/o:2"}) == Images("r:5000/e:1", "r/o:2")
    assert images({}).engine.startswith("bladellm/engine:")
    for wrong in ("engine=a:1", "engine=a:1,operator=", "a:1,b:2"):
        with pytest.raises(ValueError, match="E2E_IMAGES"):
            images({"E2E_IMAGES": wrong})


def test_image_references_are_split_for_the_chart() -> None:
    values = image_values(Images("r:5000/bladellm/engine:1", "bladellm/operator:2"))
    assert "image.repository=bladellm/operator" in values
    assert "engineImage.repository=r:5000/bladellm/engine" in values
    assert "engineImage.tag=1" in values
    with pytest.raises(ValueError, match="tag"):
        image_values(Images("r:5000/bladellm/engine", "o:1"))


def test_a_timed_out_wait_reports_what_it_saw_last() -> None:
    seen = iter(["first", "second", ""])
    assert until(lambda: next(seen), 5, "a word") == "first"
    with pytest.raises(TimedOut, match=r"a word: not within 0 s; last seen: ''"):
        until(lambda: "", 0, "a word")
    with pytest.raises(TimedOut, match="invalid literal"):
        until(lambda: int("one"), 0, "a number", ignoring=(ValueError,))


def test_a_watch_counts_once_in_the_audit_log(tmp_path: Path) -> None:
    event = {
        "auditID": "1",
        "verb": "watch",
        "user": {"username": "operator"},
        "objectRef": {"resource": "pods", "apiVersion": "v1"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-11-21T19:39:27.123456Z",
    }
    path = tmp_path / "audit.log"
    half = '{"auditID": "2", "ver'
    path.write_text(f"{json.dumps(event)}\n{json.dumps(event | {'stage': 'ResponseComplete'})}\n{half}")
    log = AuditLog(path)
    (request,) = log.requests("operator")
    assert (request.verb, request.resource, request.namespace, request.code) == ("watch", "pods", "", 200)
    assert log.requests("somebody else") == []
    assert log.requests(since=log.mark()) == []
