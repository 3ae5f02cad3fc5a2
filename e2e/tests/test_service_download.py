"""A model from a hub: downloaded with progress in status, kept in a claim, or with each pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.cluster.base import Cluster
from e2e.support.hub_pod import Hub, Origins, secret
from e2e.support.images import Images
from e2e.support.load import chat, client
from e2e.support.service import DEMO_MODEL, Service, names
from e2e.support.waiting import until

QUESTION = "What does len do?"
SECONDS = 20
"""That one download takes: status reports it every 5 s at most."""
SIZE = (DEMO_MODEL / "model" / "model.safetensors").stat().st_size


def check_chat(service: Service) -> None:
    with service.reach() as url, client() as http:
        result = chat(http, url, QUESTION, stream=True)
    assert result.outcome == "ok", result


def test_a_download_is_reported_and_kept_as_the_cache_says(
    cluster: Cluster, private: Service, images: Images, tmp_path: Path
) -> None:
    namespace = private.namespace
    hub = Hub(cluster, namespace)
    hub.start(images.operator, SIZE // SECONDS, token="hf_secret")
    private.kubectl("create", "-f", "-", input=secret("hub-token", "hf_secret"))
    # The test's cluster has no provisioner: the volume is there before the claim that the operator makes.
    cluster.volume_for(namespace, "kept-models", tmp_path / "kept", size="1Gi")
    token = {"tokenSecretRef": {"name": "hub-token"}}
    kept, each = Service(cluster, namespace, "kept"), Service(cluster, namespace, "each")
    engine = {"env": hub.environment()}
    kept.apply(model={"uri": "hf://acme/demo", "cache": {"size": "1Gi"}, **token}, engine=engine)
    each.apply(model={"uri": "hf://acme/demo", **token}, engine=engine)

    seen: dict[str, list[dict[str, Any]]] = {"kept": [], "each": []}

    def watch() -> bool:
        for service in (kept, each):
            model = service.status().get("model") or {}
            cached = service.condition("ModelCached")
            part = 0 < model.get("downloaded", 0) < SIZE
            if part and cached.get("reason") == "Downloading" and "%" in cached.get("message", ""):
                seen[service.name].append(model)
        return all(service.condition("ModelCached").get("status") == "True" for service in (kept, each))

    until(watch, 120, "both models cached")
    for reports in seen.values():
        steps = sorted({model["downloaded"] for model in reports})
        assert len(steps) >= 2, reports
        assert all(model["bytes"] > SIZE for model in reports), reports
        # Not from the first moment on: a rate takes two samples.
        assert any(model.get("bytesPerSecond") and model.get("etaSeconds") for model in reports), reports
    for service in (kept, each):
        service.wait_ready()
        check_chat(service)
    assert hub.downloads() == 2

    def weights() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*.safetensors")}

    hub.hurry()
    before = weights()
    assert before
    pods = [*names(kept.pods("engine")), *names(each.pods("engine"))]
    private.kubectl("delete", "pods", *pods, "--wait=false")
    for service in (kept, each):
        service.wait_until_converged(1)
        check_chat(service)
    assert not {*names(kept.pods("engine")), *names(each.pods("engine"))} & set(pods)
    assert weights() == before
    assert hub.downloads() == 3  # so it was the other one

    claim = kept.json("get", "pvc", "kept-models")
    assert claim["metadata"]["ownerReferences"][0]["uid"] == kept.get()["metadata"]["uid"]
    kept.delete()


def test_models_of_modelscope_a_bucket_and_a_registry(cluster: Cluster, private: Service, images: Images) -> None:
    namespace = private.namespace
    origins = Origins(cluster, namespace)
    origins.run(images.operator)
    cluster.apply(*origins.secrets(), namespace=namespace)
    host = origins.endpoint.removeprefix("http://")
    models: dict[str, dict[str, Any]] = {
        "scope": {"uri": "modelscope://acme/demo", "revision": "v1", "tokenSecretRef": {"name": "scope"}},
        "bucket": {"uri": "s3://models/demo", "credentialsSecretRef": {"name": "bucket"}},
        "registry": {"uri": f"oci://{host}/acme/demo:v1", "credentialsSecretRef": {"name": "registry"}},
    }
    addresses = {
        "scope": {"MODELSCOPE_ENDPOINT": origins.endpoint},
        "bucket": {"AWS_ENDPOINT_URL_S3": origins.endpoint},
        "registry": {"OCI_PLAIN_HTTP": "1"},
    }
    services = {name: Service(cluster, namespace, name) for name in models}
    for name, service in services.items():
        variables = {"OMP_NUM_THREADS": "1", **addresses[name]}
        env = [{"name": key, "value": value} for key, value in variables.items()]
        service.apply(model=models[name], engine={"env": env})
    for name, service in services.items():
        service.wait_ready()
        check_chat(service)
        cached = service.condition("ModelCached")
        assert (cached["status"], cached["reason"]) == ("True", "Downloaded"), cached
        assert cached["message"].startswith(f"{models[name]['uri']} is in the cache"), cached

    wrong = Service(cluster, namespace, "wrong")
    env = [{"name": "AWS_ENDPOINT_URL_S3", "value": origins.endpoint}]
    wrong.apply(model={"uri": "s3://models/demo"}, engine={"env": env})
    until(lambda: wrong.condition("ModelCached").get("reason") == "DownloadFailed", 120, "a refused download")
    message = wrong.condition("ModelCached")["message"]
    assert "answered 403" in message, message
    assert message.endswith("(AWS_ACCESS_KEY_ID is spec.model.credentialsSecretRef)"), message
    for service in (*services.values(), wrong):
        service.delete()
