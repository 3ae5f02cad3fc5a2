"""The internal token in objects: a Secret per service, mounted where the engines' internal port is opened or asked.

The operator may write Secrets but not read them, so nothing here is ever compared with what a cluster has. Instead an
annotation on the router's Deployment carries a fingerprint of the token: when the operator's key changes, that
Deployment differs, and with it the Secret is written.
"""

from __future__ import annotations

import base64
import hashlib

from blade_operator.internal_token import internal_token
from blade_operator.objects import Object
from blade_operator.render.meta import Defaults, make
from blade_operator.spec.parse import LLMService
from blade_protocol import environment
from blade_protocol.labels import ROLE_ENGINE

TOKEN_PATH = "/etc/bladellm-internal"
TOKEN_KEY = "token"
VOLUME = "internal"


def secret_name(service: LLMService) -> str:
    """Name of the Secret that holds the token."""
    return f"{service.name}-internal"


def token_secret(service: LLMService, defaults: Defaults) -> list[Object]:
    """The Secret, when the operator has a key."""
    if not defaults.internal_key:
        return []
    data = {TOKEN_KEY: base64.b64encode(_token(service, defaults).encode()).decode()}
    return [make(service, "v1", "Secret", secret_name(service), ROLE_ENGINE, type="Opaque", data=data)]


def token_fingerprint(service: LLMService, defaults: Defaults) -> str:
    """Changes with the token and tells nothing of it; empty when there is none."""
    if not defaults.internal_key:
        return ""
    return hashlib.sha256(_token(service, defaults).encode()).hexdigest()[:16]


def token_volumes(service: LLMService, defaults: Defaults) -> list[Object]:
    """The pod's volume."""
    return [{"name": VOLUME, "secret": {"secretName": secret_name(service)}}] if defaults.internal_key else []


def token_mounts(defaults: Defaults) -> list[Object]:
    """The container's mount."""
    return [{"name": VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}] if defaults.internal_key else []


def token_env(defaults: Defaults) -> dict[str, str]:
    """Where the container finds the token."""
    return {environment.INTERNAL_TOKEN_FILE: f"{TOKEN_PATH}/{TOKEN_KEY}"} if defaults.internal_key else {}


def _token(service: LLMService, defaults: Defaults) -> str:
    return internal_token(defaults.internal_key, service.namespace, service.name, service.uid)
