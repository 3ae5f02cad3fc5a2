"""Volumes and ports of a pod on this machine: what becomes a folder, and what all containers of a pod share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operator_support.local import local, until
from operator_support.objects import container, deployment, init_container

from blade_operator.cluster.local.volumes import Volumes
from blade_operator.model.objects import Object


def _volumes(tmp_path: Path, *volumes: Any) -> Volumes:
    pod: Object = {"metadata": {"namespace": "team"}, "spec": {"volumes": list(volumes)}}
    return Volumes(pod, tmp_path / "pod", tmp_path / "claims", lambda kind, name: None)


def _mounts(*pairs: tuple[str, str]) -> Object:
    return {"volumeMounts": [{"name": name, "mountPath": path} for name, path in pairs]}


def test_what_the_machine_has_itself_is_no_folder(tmp_path: Path) -> None:
    # A model below /tmp must be found where it is, not in a pod's scratch space.
    volumes = _volumes(
        tmp_path,
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    )
    volumes.prepare()
    assert volumes.mounts(_mounts(("tmp", "/tmp"), ("shm", "/dev/shm"))) == {}


def test_scratch_space_is_the_pods_and_claims_are_kept(tmp_path: Path) -> None:
    volumes = _volumes(
        tmp_path,
        {"name": "fast", "emptyDir": {"medium": "Memory"}},
        {"name": "own", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "models", "persistentVolumeClaim": {"claimName": "qwen-models", "readOnly": True}},
    )
    volumes.prepare()
    mounts = volumes.mounts(_mounts(("fast", "/fast"), ("own", "/own"), ("models", "/models")))
    assert mounts == {
        "/fast": tmp_path / "pod" / "fast",
        "/own": tmp_path / "pod" / "own",
        "/models": tmp_path / "claims" / "team" / "qwen-models",
    }
    assert all(folder.is_dir() for folder in mounts.values())


async def test_a_download_gets_the_port_its_engine_will_have(tmp_path: Path) -> None:
    fetch = init_container("fetch", "import time; time.sleep(60)")
    fetch["env"] = [{"name": "BLADE_HOST", "value": "0.0.0.0"}, {"name": "BLADE_INTERNAL_PORT", "value": "9081"}]
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(initContainers=[fetch], containers=[container("engine")]))
        [pod] = await until(runtime.pods)
        [port] = [each["containerPort"] for each in pod["spec"]["containers"][0]["ports"] if each["name"] == "internal"]
        assert port != 9081
        for each in (pod["spec"]["initContainers"][0], pod["spec"]["containers"][0]):
            values = {entry["name"]: entry["value"] for entry in each["env"]}
            assert (values["BLADE_INTERNAL_PORT"], values["BLADE_HOST"]) == (str(port), "127.0.0.1")
