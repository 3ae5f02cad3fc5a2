"""Revisions: the pod template of a spec, kept in a ControllerRevision so that it is rendered only once.

The template is found by a hash of the spec, not rendered anew at every reconcile: a new operator release that would
render it differently restarts nothing.
"""

from __future__ import annotations

from blade_operator.model.objects import Object
from blade_operator.render.meta import digest, engine_name, make, seal
from blade_operator.render.storage import has_claim
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import OF_CLAIM, REVISION, ROLE_ENGINE, SPEC_HASH


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
    if has_claim(service):
        obj["metadata"]["annotations"][OF_CLAIM] = "true"
    return seal(obj)
