"""Revisions: the pod template of a spec, kept in a ControllerRevision so that it is rendered only once.

The template is found by a hash of the spec, not rendered anew at every reconcile: a new operator release that would
render it differently restarts nothing.
"""

from __future__ import annotations

from typing import Any

from blade_operator.model.objects import Object
from blade_operator.render.meta import digest, engine_name, make, seal
from blade_operator.render.storage import one_machine
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import RESTARTED_AT, REVISION, ROLE_ENGINE, SPEC_HASH


def spec_hash(service: LLMService) -> str:
    """Hash of the fields in the spec that shape engine pods; fields at their defaults do not count.

    So a release that adds a field with a default leaves the hash as it is.
    """
    relevant: dict[str, Any] = service.spec.model_dump(
        by_alias=True, exclude_defaults=True, include={"model", "engine", "check"}
    )
    if "cache" in relevant["model"] and "claimName" not in relevant["model"]["cache"]:
        relevant["model"]["cache"] = _cache_fields(service)
    if not service.spec.security.engine_token:
        relevant["engineToken"] = False
    relevant["drainTimeout"] = service.spec.rollout.drain_timeout
    relevant["restartedAt"] = service.annotations.get(RESTARTED_AT, "")
    return digest(relevant)


def _cache_fields(service: LLMService) -> Any:
    """The part of a claim that shapes the pods: that the operator creates one, and if engines share a machine."""
    cache = service.spec.model.cache
    return {"own": cache is not None and cache.size is not None, "oneMachine": one_machine(service)}


def revision_of(template: Object) -> str:
    """The short hash that names a pod template."""
    return digest(template)[:8]


def controller_revision(service: LLMService, template: Object, number: int, of_spec: str) -> Object:
    """The ControllerRevision that keeps ``template``.

    ``number`` grows with each change, ``of_spec`` is the `spec_hash` that the template was rendered for.
    """
    revision = revision_of(template)
    obj = make(
        service,
        "apps/v1",
        "ControllerRevision",
        f"{engine_name(service)}-{revision}",
        ROLE_ENGINE,
        data={"template": template},
        revision=number,
    )
    obj["metadata"]["labels"][REVISION] = revision
    obj["metadata"]["annotations"][SPEC_HASH] = of_spec
    return seal(obj)
