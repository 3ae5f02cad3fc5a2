"""Revision history: the revision that a spec stands for, and which earlier ControllerRevisions are kept."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from blade_operator.model.objects import Object, Ref
from blade_operator.render import Defaults, controller_revision, pod_template, restorable, revision_of, spec_hash
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import OF_CLAIM, SPEC_HASH


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions of one service."""

    current: str
    previous: str
    outdated: bool
    """Whether this operator would render the pods of the current revision differently."""
    templates: dict[str, Object]
    """Pod template of each revision in the history."""
    desired: list[Object]
    """The ControllerRevisions to apply."""
    history: list[Object]
    """ControllerRevisions of earlier revisions, oldest first."""
    limit: int

    def expired(self, running: AbstractSet[str]) -> list[Ref]:
        """ControllerRevisions beyond the history limit; never one whose revision still has a Deployment."""
        idle = [obj for obj in self.history if revision_name(obj) not in running]
        return [Ref.of(obj) for obj in (idle[: -self.limit] if self.limit else idle)]


def revision_name(controller_revision: Object) -> str:
    """Name of the revision that a ControllerRevision holds: the end of its own name, since labels can be removed."""
    return str(controller_revision["metadata"]["name"]).rpartition("-")[2]


def find_revisions(
    service: LLMService, obj: Object, history: Sequence[Object], defaults: Defaults, claim: Object | None = None
) -> Revisions:
    """The revisions of ``service``: the current one is found by the hash of the spec, or else rendered now.

    ``obj``: the service as it is stored; ``claim``: the operator's own of the model cache, if it is there.

    A rollback to an earlier spec thus finds the earlier revision, and gives it the newest number.
    """
    of_spec = spec_hash(service, claim)
    history = sorted(history, key=lambda obj: (obj.get("revision", 0), revision_name(obj)))
    rendered = pod_template(service, defaults, claim)
    known = _find(history, of_spec) or _find_earlier(history, spec_hash(service))
    template = known["data"]["template"] if known else rendered
    current = revision_of(template)
    earlier = [obj for obj in history if revision_name(obj) != current]
    newest = earlier[-1].get("revision", 0) if earlier else 0
    same = next((obj for obj in history if revision_name(obj) == current), None)
    data = same["data"] if same else {"template": template, "service": restorable(obj)}
    number = same["revision"] if same and same["revision"] > newest else newest + 1
    return Revisions(
        current=current,
        previous=revision_name(earlier[-1]) if earlier else "",
        outdated=revision_of(rendered) != current,
        templates={revision_name(obj): obj["data"]["template"] for obj in history} | {current: template},
        desired=[controller_revision(service, data, number, of_spec)],
        history=earlier,
        limit=service.spec.rollout.revision_history_limit,
    )


def _find(history: Sequence[Object], of_spec: str) -> Object | None:
    return next((obj for obj in reversed(history) if _spec_hash(obj) == of_spec), None)


def _find_earlier(history: Sequence[Object], of_spec: str) -> Object | None:
    """The revision that an earlier release made, which did not look at the claim that is there: it stays."""
    return _find([obj for obj in history if OF_CLAIM not in obj["metadata"].get("annotations", {})], of_spec)


def _spec_hash(controller_revision: Object) -> str:
    return str(controller_revision["metadata"].get("annotations", {}).get(SPEC_HASH, ""))
