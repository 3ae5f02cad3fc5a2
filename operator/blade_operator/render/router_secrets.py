"""The user's Secrets that a router needs: API keys and the certificate.

Both are mounted. The keys are followed through the API as well, where the router may: it learns of a change at once,
and of a mounted one up to a minute later. The mounted file is what counts until the API has answered, and all there is
on one machine. A pod waits for a Secret that does not exist, so no router ever serves without its keys.
"""

from __future__ import annotations

from blade_operator.model.objects import Object
from blade_operator.model.pods import CERTIFICATE, KEYS
from blade_operator.render.meta import Defaults
from blade_operator.spec.parse import LLMService

KEYS_PATH = "/etc/bladellm-keys"
TLS_PATH = "/etc/bladellm-tls"
TLS_CERTIFICATE, TLS_KEY = "tls.crt", "tls.key"
"""Entries of a Secret of type kubernetes.io/tls."""


def secret_flags(service: LLMService, defaults: Defaults) -> list[str]:
    """The flags that name the mounted files."""
    router, flags = service.spec.router, []
    if router.auth is not None:
        flags += ["--keys", KEYS_PATH]
        if defaults.watch_keys:
            flags += ["--keys_secret", router.auth.keys_secret.name]
    if router.tls is not None:
        flags += ["--tls_cert", f"{TLS_PATH}/{TLS_CERTIFICATE}", "--tls_key", f"{TLS_PATH}/{TLS_KEY}"]
    return flags


def secret_volumes(service: LLMService) -> list[Object]:
    """The pod's volumes."""
    router, volumes = service.spec.router, []
    if router.auth is not None:
        volumes.append({"name": KEYS, "secret": {"secretName": router.auth.keys_secret.name}})
    if router.tls is not None:
        volumes.append({"name": CERTIFICATE, "secret": {"secretName": router.tls.secret_name}})
    return volumes


def secret_mounts(service: LLMService) -> list[Object]:
    """The container's mounts."""
    router = service.spec.router
    wanted = ((KEYS, KEYS_PATH, router.auth), (CERTIFICATE, TLS_PATH, router.tls))
    return [{"name": name, "mountPath": path, "readOnly": True} for name, path, said in wanted if said is not None]


def keys_rules(service: LLMService, defaults: Defaults) -> list[Object]:
    """Role rules to watch the Secret of keys."""
    auth = service.spec.router.auth
    if auth is None or not defaults.watch_keys:
        return []
    names = [auth.keys_secret.name]
    return [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["list", "watch"]}]
