"""Objects that belong to a service as a whole, not to its engines or its routers alone."""

from __future__ import annotations

from collections.abc import Collection

from blade_operator.model.objects import Object
from blade_operator.render.meta import Defaults
from blade_operator.render.network import network_policies
from blade_operator.render.storage import model_claim
from blade_operator.render.token_secret import token_secret
from blade_operator.spec.parse import LLMService


def service_objects(
    service: LLMService, defaults: Defaults, sidecars: Collection[str] = (), groups: bool = False
) -> list[Object]:
    """The internal token, the claim of the model cache, and the network policies; each only where the spec needs it.

    ``sidecars``: the roles of pods into which others put containers. ``groups``: engines on several machines are there.
    """
    policies = network_policies(service, defaults, sidecars, groups)
    return [*token_secret(service, defaults), *model_claim(service), *policies]
