"""The Secret with the internal token of a service, mounted where the engines' internal port is served or queried.

The operator may make and replace Secrets but not read them, so nothing here is ever compared with what a cluster has:
it is replaced when engines say that theirs is of another key (`reconcile/rotation.py`). The token follows from the
operator's key and the service's uid: made again, it is the same. So the Secret's name has the uid, too: one that an
earlier service of the same name left would hold another token.
"""

from __future__ import annotations

import base64

from blade_operator.model.objects import Object
from blade_operator.model.pods import TOKEN
from blade_operator.render.internal_token import internal_token
from blade_operator.render.meta import Defaults, digest, make
from blade_operator.spec.parse import LLMService
from blade_protocol import environment
from blade_protocol.labels import ROLE_ENGINE, SENDS_TOKEN

TOKEN_PATH = "/etc/bladellm-internal"
TOKEN_KEY = "token"


def secret_name(service: LLMService) -> str:
    """Name of the Secret that holds the token."""
    return f"{service.name}-internal-{digest(service.uid)[:8]}"


def token_secret(service: LLMService, defaults: Defaults) -> list[Object]:
    """The Secret, when the operator has a key."""
    if not defaults.internal_key:
        return []
    token = internal_token(defaults.internal_key, service.namespace, service.name, service.uid)
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    return [make(service, "v1", "Secret", secret_name(service), ROLE_ENGINE, type="Opaque", data=data)]


def token_volumes(service: LLMService, defaults: Defaults) -> list[Object]:
    """The pod's volume."""
    return [{"name": TOKEN, "secret": {"secretName": secret_name(service)}}] if defaults.internal_key else []


def token_mounts(defaults: Defaults) -> list[Object]:
    """The container's mount."""
    return [{"name": TOKEN, "mountPath": TOKEN_PATH, "readOnly": True}] if defaults.internal_key else []


def engine_token_env(service: LLMService, defaults: Defaults) -> dict[str, str]:
    """The environment variables of an engine; with the one that makes its public port require the token, too."""
    required = {environment.PUBLIC_TOKEN: "1"} if _requires_token(service) else {}
    return token_env(defaults) | required if defaults.internal_key else {}


def token_labels(service: LLMService, defaults: Defaults) -> dict[str, str]:
    """The label of a router pod that sends the token."""
    sends = not service.spec.router.image or _requires_token(service)  # an image of the user's own may be too old to
    return {SENDS_TOKEN: "true"} if defaults.internal_key and sends else {}


def _requires_token(service: LLMService) -> bool:
    """Whether engines require it on their public port: as the spec says, else where routers are known to send it."""
    wanted = service.spec.security.engine_token
    return not service.spec.router.image if wanted is None else wanted


def token_env(defaults: Defaults) -> dict[str, str]:
    """The environment variable with the path of the token."""
    return {environment.INTERNAL_TOKEN_FILE: f"{TOKEN_PATH}/{TOKEN_KEY}"} if defaults.internal_key else {}
