"""The token that opens the engines' internal port: one per service, derived from one key per operator.

Derived rather than stored, so the operator knows every service's token without the right to read a single Secret, and
an operator that was restarted knows the same ones. The key lives in the operator's own namespace.
"""

from __future__ import annotations

import hashlib
import hmac


def internal_token(key: bytes, namespace: str, name: str, uid: str) -> str:
    """Hex HMAC-SHA256 of the service's identity. The uid makes a service that is created anew have another token.

    Raises ``ValueError`` when ``key`` is empty: without a key there is no token.
    """
    if not key:
        raise ValueError("the key of the internal tokens is empty")
    return hmac.new(key, f"{namespace}/{name}/{uid}".encode(), hashlib.sha256).hexdigest()
