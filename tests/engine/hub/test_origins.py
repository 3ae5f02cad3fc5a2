"""Models of ModelScope, of buckets and of registries: fetched, resumed and verified like those of the hub."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_support.fake_hub import FakeHub, sha256
from hub_support.fake_origins import manifest, running_origins
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.hub import download as hub_download
from blade_llm.hub.docker_config import registry_credentials
from blade_llm.hub.model import HubModel
from blade_llm.hub.registry import _scheme
from blade_llm.hub.resolve import parse_model, resolve_model
from blade_llm.hub.snapshot import _folder_name
from blade_llm.models.errors import ModelFilesError

NAME = "acme/tiny"
PREFIX = "models/qwen/tiny"


@pytest.fixture
def origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    for name in ("MODELSCOPE", "MODELSCOPE_API_TOKEN", "OCI_USERNAME", "DOCKER_AUTH_CONFIG", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_download, "_wait", lambda seconds, stop: None)
    with running_origins() as hub:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", hub.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "right-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("OSS_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("OSS_ACCESS_KEY_ID", "right-key")
        monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "secret")
        hub.add(NAME, make_model(tmp_path / "source", shards=2))
        hub.repositories[NAME] |= {"README.md": b"not needed", "onnx/model.safetensors": b"not needed"}
        hub.repositories[PREFIX] = hub.repositories[NAME]
        yield hub


def uri(hub: FakeHub, origin: str) -> str:
    if origin == "oci":
        return f"oci://{hub.endpoint.removeprefix('http://')}/{NAME}"
    if origin == "modelscope":
        return f"modelscope://{NAME}"
    pytest.importorskip("minio")
    return f"{origin}://{PREFIX}"


ORIGINS = ("modelscope", "s3", "oss", "oci")


@pytest.fixture(params=ORIGINS)
def model(request: pytest.FixtureRequest, origins: FakeHub) -> str:
    return uri(origins, request.param)


def assert_complete(folder: Path, hub: FakeHub) -> None:
    wanted = {n: d for n, d in hub.repositories[NAME].items() if n.endswith((".json", ".safetensors")) and "/" not in n}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted


def shard(hub: FakeHub) -> tuple[str, str]:
    """What paths of requests for the first part of the weights contain, by whoever answers; and its name."""
    name = "model-00001-of-00002.safetensors"
    return name, sha256(hub.repositories[NAME][name])


def shard_path(model: str, hub: FakeHub) -> str:
    name, digest = shard(hub)
    return {"modelscope": f"FilePath={name}", "oci": f"blobs/sha256:{digest}"}.get(
        model.partition("://")[0], f"{name}?X-Amz"
    )


def test_it_is_fetched_once_and_then_found(model: str, origins: FakeHub) -> None:
    folder = resolve_model(model)
    assert_complete(folder, origins)
    requests = len(origins.requests)
    assert resolve_model(model) == folder
    assert len(origins.requests) == requests


def test_offline_only_the_cache_is_used(model: str, origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFilesError, match="HF_HUB_OFFLINE forbids downloads"):
        resolve_model(model)
    assert origins.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = resolve_model(model)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model(model) == folder


def test_a_cut_connection_is_continued_where_it_broke(model: str, origins: FakeHub) -> None:
    path = shard_path(model, origins)
    origins.fault(path, cut_after=300)
    assert_complete(resolve_model(model), origins)
    gets = [request for request in origins.requests if path in request.path and request.method == "GET"]
    assert [request.range for request in gets] == [None, "bytes=300-"]


def test_wrong_content_is_noticed_and_fetched_again(model: str, origins: FakeHub) -> None:
    path = shard_path(model, origins)
    origins.fault(path, corrupt=True)
    assert_complete(resolve_model(model), origins)
    origins.fault(path, corrupt=True, times=9)
    for pointer in Path(constants.HF_HUB_CACHE).glob("*/snapshots/*/*"):
        pointer.unlink()
    for blob in Path(constants.HF_HUB_CACHE).glob("*/blobs/*"):
        blob.unlink()
    with pytest.raises(ModelFilesError, match=r"00001-of-00002.safetensors arrived with the checksum .* twice"):
        resolve_model(model)


def test_a_busy_origin_is_tried_again(origins: FakeHub) -> None:
    origins.fault("/repo/files", status=503, times=3)
    origins.fault("/manifests/", status=429, times=2)
    assert_complete(resolve_model(uri(origins, "modelscope")), origins)
    assert_complete(resolve_model(uri(origins, "oci")), origins)


def test_modelscope_by_the_environment_revision_and_token(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE", "1")
    assert parse_model(NAME) == HubModel(NAME, None, "modelscope")
    assert parse_model(f"hf://{NAME}") == HubModel(NAME, None, "hf")
    origins.add(NAME, origins.repositories[NAME], token="ms-right")
    with pytest.raises(ModelFilesError, match=r"may not be read .*403.*MODELSCOPE_API_TOKEN"):
        resolve_model(NAME)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-right")
    assert_complete(resolve_model(f"{NAME}@v1"), origins)
    with pytest.raises(ModelFilesError, match=r"modelscope://acme/tiny@v9 does not exist .*'v9'"):
        resolve_model(f"{NAME}@v9")


def test_without_checksums_there_is_no_model(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_support.fake_origins.sha256", lambda data: "")
    with pytest.raises(ModelFilesError, match=r"tells no checksum of config\.json"):
        resolve_model(f"modelscope://{NAME}")


@pytest.mark.parametrize("origin", ["s3", "oss"])
def test_a_bucket_wants_credentials_that_may_read_it(
    origins: FakeHub, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    model = uri(origins, origin)
    origins.tokens["models"] = "right-key"
    variable = {"s3": "AWS_ACCESS_KEY_ID", "oss": "OSS_ACCESS_KEY_ID"}[origin]
    monkeypatch.setenv(variable, "other-key")
    with pytest.raises(ModelFilesError, match=rf"may not be read \({origin}://models answered 403\); set {variable}"):
        resolve_model(model)
    monkeypatch.setenv(variable, "right-key")
    assert_complete(resolve_model(model), origins)


def test_a_bucket_without_the_prefix(origins: FakeHub) -> None:
    uri(origins, "s3")
    with pytest.raises(ModelFilesError, match="nothing in bucket models begins with qwen/tin/; check the prefix"):
        resolve_model("s3://models/qwen/tin")
    with pytest.raises(ModelFilesError, match="'s3://models' is not of the form s3://BUCKET/PREFIX"):
        resolve_model("s3://models")


@pytest.mark.parametrize("origin", ["s3", "oss"])
def test_without_the_client_the_error_names_the_extra(
    origins: FakeHub, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setitem(sys.modules, "minio", None)
    with pytest.raises(ModelFilesError, match=rf"pip install 'bladellm\[{origin}\]'"):
        resolve_model(f"{origin}://{PREFIX}")


def test_a_registry_with_a_token_a_tag_and_a_digest(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    model = uri(origins, "oci")
    origins.tokens[NAME] = "any"
    with pytest.raises(
        ModelFilesError, match=r"may not be read .*401.*OCI_USERNAME and OCI_PASSWORD, or DOCKER_AUTH_CONFIG, to"
    ):
        resolve_model(model)
    monkeypatch.setenv("OCI_USERNAME", "me")
    monkeypatch.setenv("OCI_PASSWORD", "secret")
    folder = resolve_model(f"{model}:v1")
    assert_complete(folder, origins)
    assert resolve_model(f"{model}@sha256:{sha256(manifest(origins.repositories[NAME]))}") == folder
    with pytest.raises(ModelFilesError, match="does not exist"):
        resolve_model(f"{model}:v9")


def test_a_registry_with_the_credentials_of_a_docker_configuration(
    origins: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = uri(origins, "oci")
    origins.tokens[NAME] = "any"
    host = origins.endpoint.removeprefix("http://")
    other, right = ({"auth": base64.b64encode(pair).decode()} for pair in (b"you:guess", b"me:secret"))
    for auths in (
        {host: right, "ghcr.io": other},
        {f"https://{host}/v2/": {"username": "me", "password": "secret"}},
        {host: other, f"{host}/acme": right, f"{host}/acm": other, f"{host}/acme/tiny/x": other},
    ):
        folder = tmp_path / "docker"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"auths": auths}))
        for name, value in (("DOCKER_AUTH_CONFIG", json.dumps({"auths": auths})), ("DOCKER_CONFIG", str(folder))):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / name))
                assert_complete(resolve_model(model), origins)
                shutil.rmtree(tmp_path / name)
    for text, said in (
        ("{", "DOCKER_AUTH_CONFIG is no Docker configuration"),
        ("[]", "DOCKER_AUTH_CONFIG is no Docker configuration"),
        (json.dumps({"auths": {host: {"auth": "é"}}}), "without user and password"),
        (json.dumps({"auths": {host: {}}}), r"answered 401\); set OCI_USERNAME"),
        (json.dumps({"auths": {"ghcr.io": right}}), r"answered 401\); set OCI_USERNAME"),
    ):
        monkeypatch.setenv("DOCKER_AUTH_CONFIG", text)
        with pytest.raises(ModelFilesError, match=said):
            resolve_model(model)


def test_docker_hub_has_several_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCI_USERNAME", raising=False)
    auths = {"https://index.docker.io/v1/": {"auth": base64.b64encode(b"me:a:b").decode()}}
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": auths}))
    assert registry_credentials("registry-1.docker.io/acme/tiny") == ("me", "a:b")
    assert registry_credentials("docker.io.example.com/acme/tiny") is None


def test_a_registry_without_tls_has_to_be_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCI_PLAIN_HTTP", raising=False)
    assert [_scheme("registry.team:5000"), _scheme("127.0.0.1:5000")] == ["https", "http"]
    monkeypatch.setenv("OCI_PLAIN_HTTP", "1")
    assert _scheme("registry.team:5000") == "http"


def test_an_image_is_no_artifact_of_files(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_support.fake_origins.TITLE", "other")
    with pytest.raises(ModelFilesError, match=r"is no artifact of files .*push the model's folder with oras"):
        resolve_model(uri(origins, "oci"))


def test_an_origin_that_cannot_be_reached(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelFilesError, match=r"cannot reach the model hub http://127.0.0.1:1 .*MODELSCOPE_ENDPOINT"):
        resolve_model(f"modelscope://{NAME}")
    with pytest.raises(ModelFilesError, match="check the registry's name"):
        resolve_model("oci://127.0.0.1:1/acme/tiny")


def test_different_models_have_different_folders() -> None:
    ids = {"s3": ["b/step=1000", "b/step/1000", "b/step--1000"], "oci": ["h:5000/x", "h/5000/x"]}
    for origin, names in ids.items():
        assert len({_folder_name(HubModel(name, None, origin)) for name in names}) == len(names)  # type: ignore[arg-type]
    assert _folder_name(HubModel("acme/tiny")) == "models--acme--tiny", "as the hub library names it"


def test_a_revision_of_a_registry_is_a_tag_or_a_digest() -> None:
    digest = "sha256:" + "0" * 64
    for revision in ("v1.0-b", digest):
        assert parse_model("oci://h/x", revision) == HubModel("h/x", revision, "oci")
    for revision in ("../../x", "a/b", "/etc", "..", "sha256:0"):
        with pytest.raises(ModelFilesError, match="neither a tag nor a digest"):
            parse_model("oci://h/x", revision)


def test_a_token_that_expires_in_mid_download_is_fetched_again(
    origins: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins.tokens[NAME] = "any"
    monkeypatch.setenv("OCI_USERNAME", "me")
    monkeypatch.setenv("OCI_PASSWORD", "secret")
    _, digest = shard(origins)
    origins.fault(f"blobs/sha256:{digest}", status=401)
    assert_complete(resolve_model(uri(origins, "oci")), origins)
    assert len(origins.asked("/token")) == 2


def test_a_manifest_without_end_is_not_read_whole(origins: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_llm.hub.registry._MAX_MANIFEST_BYTES", 100)
    with pytest.raises(ModelFilesError, match="sends a manifest of more than 100 bytes"):
        resolve_model(uri(origins, "oci"))


def test_answers_that_are_no_json_are_named_with_their_address(
    origins: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub_support.fake_origins.json.dumps", lambda content: "<html>sign in</html>")
    with pytest.raises(ModelFilesError, match=r"/repo/files.* answers with something else than JSON"):
        resolve_model(f"modelscope://{NAME}")
    origins.tokens[NAME] = "any"
    monkeypatch.setenv("OCI_USERNAME", "me")
    monkeypatch.setenv("OCI_PASSWORD", "secret")
    with pytest.raises(ModelFilesError, match=r"/token sends no token"):
        resolve_model(uri(origins, "oci"))


@pytest.mark.parametrize("origin", ["modelscope", "oci"])
def test_a_size_that_is_no_number_is_named(origins: FakeHub, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    dumps = json.dumps

    def with_odd_sizes(content: object) -> str:
        return re.sub(r'"([Ss]ize)": \d+', r'"\1": "x"', dumps(content))

    monkeypatch.setattr("hub_support.fake_origins.json.dumps", with_odd_sizes)
    with pytest.raises(ModelFilesError, match="has the size 'x'" if origin == "oci" else "does not tell files, sizes"):
        resolve_model(uri(origins, origin))
