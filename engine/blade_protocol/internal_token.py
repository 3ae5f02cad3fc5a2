"""The internal token: how it changes under pods that use it.

Kubernetes updates a mounted Secret in each pod at a time of its own. So for a while after a change a sender sends both
tokens, in two headers, and a receiver accepts both.
"""

from typing import Final

ROTATION_SECONDS: Final = 180.0
"""Seconds for which the token before counts: a kubelet updates its pods at least every 60 to 90 seconds."""
