"""The installation's root key, from which every service's internal token is derived. Made once, by the first leader."""

from __future__ import annotations

import base64
import secrets

from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.kinds import SECRET

NAME = "bladellm-internal-key"
FIELD = "key"
LENGTH = 32
"""Bytes."""


async def root_key(api: Api, namespace: str) -> bytes:
    """The key in the operator's own namespace, made when there is none.

    Raises:
        ApiError: it can be neither read nor made.
        ValueError: the Secret holds no key.
    """
    path = SECRET.path(namespace, NAME)
    try:
        secret = await api.get(path, kind=SECRET.name)
    except ApiError as error:
        if error.status != 404:
            raise
        metadata = {"name": NAME, "namespace": namespace}
        data = {FIELD: base64.b64encode(secrets.token_bytes(LENGTH)).decode()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        try:
            secret = await api.write("POST", SECRET.path(namespace), body, kind=SECRET.name)
        except ApiError as conflict:
            if conflict.status != 409:
                raise
            secret = await api.get(path, kind=SECRET.name)
    key = base64.b64decode((secret.get("data") or {}).get(FIELD, ""))
    if len(key) < LENGTH:
        raise ValueError(
            f"Secret {namespace}/{NAME} has no {LENGTH} bytes under {FIELD!r}: delete it and a new one is made"
        )
    return key
