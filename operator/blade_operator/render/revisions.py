"""Revisions: the pod template of a spec, kept in a ControllerRevision so that it is rendered only once.

The template is found by a hash of the spec, not rendered anew at every reconcile: a new operator release that would
render it differently restarts nothing.
"""

from __future__ import annotations

from typing import Final

from blade_operator.model.objects import Object
from blade_operator.render.meta import digest, engine_name, make, seal
from blade_operator.render.storage import has_claim
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import CHANGE_CAUSE, OF_CLAIM, RESTARTED_AT, REVISION, ROLE_ENGINE, SPEC_HASH

RESTORED: Final = ("model", "engine", "check", "tracing", "logFormat")
"""The parts of a spec that shape engine pods as a whole."""
RESTORED_FIELDS: Final = (("security", "engineToken"), ("router", "maxBodyBytes"), ("rollout", "drainTimeout"))
"""Further fields that do."""


def revision_of(template: Object) -> str:
    """The short hash that names a pod template."""
    return digest(template)[:8]


def restorable(obj: Object) -> Object:
    """What of the LLMService ``obj`` shapes its engines, as its user wrote it: ``rollout undo`` writes it again."""
    spec = obj["spec"]
    kept: Object = {part: spec[part] for part in RESTORED if part in spec}
    for part, name in RESTORED_FIELDS:
        if (value := (spec.get(part) or {}).get(name)) is not None:
            kept[part] = {name: value}
    restarted = (obj["metadata"].get("annotations") or {}).get(RESTARTED_AT)
    metadata: Object = {"annotations": {RESTARTED_AT: restarted}} if restarted else {}
    return {"metadata": metadata, "spec": kept}


def controller_revision(service: LLMService, data: Object, number: int, of_spec: str) -> Object:
    """The ControllerRevision that keeps ``data``, which cannot change later: the pod ``template``, and ``service``.

    ``number`` grows with each change, ``of_spec`` is the `spec_hash` that the template was rendered for. Those that
    earlier releases made have no ``service`` (see `restorable`).
    """
    revision = revision_of(data["template"])
    obj = make(
        service,
        "apps/v1",
        "ControllerRevision",
        f"{engine_name(service)}-{revision}",
        ROLE_ENGINE,
        data=data,
        revision=number,
    )
    obj["metadata"]["labels"][REVISION] = revision
    obj["metadata"]["annotations"][SPEC_HASH] = of_spec
    if cause := service.annotations.get(CHANGE_CAUSE):
        obj["metadata"]["annotations"][CHANGE_CAUSE] = cause
    if has_claim(service):
        obj["metadata"]["annotations"][OF_CLAIM] = "true"
    return seal(obj)
