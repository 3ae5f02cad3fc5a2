"""Storage of the model: in the image, in a folder of a claim, or in a cache that a download fills."""

from __future__ import annotations

from typing import Any, Final

from blade_operator.model.objects import Object
from blade_operator.render.meta import make
from blade_operator.spec.model_fields import ModelCache
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import ROLE_ENGINE

MODELS_PATH = "/models"
VOLUME = "models"
_TOKENS: Final = {"hf": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
_CREDENTIALS: Final[dict[str, dict[str, tuple[str, bool]]]] = {
    "s3": {
        "AWS_ACCESS_KEY_ID": ("AWS_ACCESS_KEY_ID", True),
        "AWS_SECRET_ACCESS_KEY": ("AWS_SECRET_ACCESS_KEY", True),
        "AWS_SESSION_TOKEN": ("AWS_SESSION_TOKEN", False),
        "AWS_REGION": ("AWS_REGION", False),
    },
    "oss": {
        "OSS_ACCESS_KEY_ID": ("OSS_ACCESS_KEY_ID", True),
        "OSS_ACCESS_KEY_SECRET": ("OSS_ACCESS_KEY_SECRET", True),
        "OSS_SESSION_TOKEN": ("OSS_SESSION_TOKEN", False),
        "OSS_REGION": ("OSS_REGION", False),
    },
    # The key of a Secret of type kubernetes.io/dockerconfigjson, and the variable Docker's own client reads it from.
    "oci": {"DOCKER_AUTH_CONFIG": (".dockerconfigjson", True)},
}
"""By scheme and variable of the download: the key of the Secret, and whether it has to be there."""


def model_argument(service: LLMService) -> str:
    """The value of ``--model``: a folder, or the hub id with its revision."""
    model = service.spec.model
    return _argument(model.uri, model.revision)


def draft_argument(service: LLMService) -> str | None:
    """The value of ``--draft.model``; None without a draft model."""
    speculative = service.spec.engine.speculative
    draft = None if speculative is None else speculative.draft_model
    return None if draft is None else _argument(draft.uri, draft.revision)


def adapter_argument(uri: str) -> str:
    """The path by which engines load an adapter."""
    return _argument(uri, None)


def _argument(uri: str, revision: str | None) -> str:
    if uri.startswith("file://"):
        return uri.removeprefix("file://")
    if uri.startswith("pvc://"):
        _, _, folder = uri.removeprefix("pvc://").partition("/")
        return f"{MODELS_PATH}/{folder}" if folder else MODELS_PATH
    return f"{uri}@{revision}" if revision else uri


def download_env(service: LLMService, *, offline: bool) -> dict[str, Any]:
    """Environment for reading the cache of downloads; only the download (not ``offline``) makes connections, with what
    the service's Secret has for them."""
    model = service.spec.model
    if not model.downloaded:
        return {}
    env: dict[str, Any] = {"HF_HOME": MODELS_PATH}
    if offline:
        return env | {"HF_HUB_OFFLINE": "1"}
    if token := model.token_secret_ref:
        env[_TOKENS[model.scheme]] = _secret_key(token.name, token.key)
    if credentials := model.credentials_secret_ref:
        for variable, (key, required) in _CREDENTIALS[model.scheme].items():
            env[variable] = _secret_key(credentials.name, key, required=required)
    return env


def _secret_key(name: str, key: str, *, required: bool = True) -> Object:
    return {"secretKeyRef": {"name": name, "key": key, **({} if required else {"optional": True})}}


def model_volumes(service: LLMService) -> list[Object]:
    """The pod's volume with the model; none when the image has it."""
    uri, cache = service.spec.model.uri, _cache(service)
    if uri.startswith("pvc://"):
        claim = uri.removeprefix("pvc://").partition("/")[0]
        return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    if not service.spec.model.downloaded:
        return []
    if claim := cache.claim_name or (claim_name(service) if cache.size is not None else ""):
        return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    return [{"name": VOLUME, "emptyDir": {}}]


def model_mounts(service: LLMService) -> list[Object]:
    """The mount of that volume in a container."""
    read_only = {"readOnly": True} if service.spec.model.uri.startswith("pvc://") else {}
    return [{"name": VOLUME, "mountPath": MODELS_PATH, **read_only}] if model_volumes(service) else []


def claim_name(service: LLMService) -> str:
    """Name of the claim the operator makes."""
    return f"{service.name}-models"


def has_claim(service: LLMService) -> bool:
    """Whether the operator makes a claim for the model cache."""
    return _cache(service).size is not None


def model_claim(service: LLMService) -> list[Object]:
    """The claim for the model cache, when the spec has a size for one."""
    cache = _cache(service)
    if cache.size is None:
        return []
    spec: Object = {
        "accessModes": _access_modes(cache),
        "resources": {"requests": {"storage": str(cache.size)}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return [make(service, "v1", "PersistentVolumeClaim", claim_name(service), ROLE_ENGINE, spec=spec)]


def one_machine(service: LLMService, claim: Object | None = None) -> bool:
    """Whether only one machine can mount the cache, so that all engines have to run there.

    The access modes of the ``claim`` that is there count: it may be older than what the spec says.
    """
    cache = _cache(service)
    modes = claim["spec"]["accessModes"] if claim is not None else _access_modes(cache)
    return cache.size is not None and "ReadWriteMany" not in modes


def _access_modes(cache: ModelCache) -> list[str]:
    return list(cache.access_modes) or ["ReadWriteOnce"]


def _cache(service: LLMService) -> ModelCache:
    return service.spec.model.cache or ModelCache()
