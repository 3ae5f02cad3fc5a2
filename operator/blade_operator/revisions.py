"""Which revision a spec asks for, and which earlier ones are kept."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from blade_operator.objects import Object, Ref
from blade_operator.render import Defaults, controller_revision, pod_template, revision_of, spec_hash
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import SPEC_HASH


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions of one service."""

    current: str
    previous: str
    outdated: bool
    """This operator would render the current revision's pods differently."""
    templates: dict[str, Object]
    """Pod template of every revision that is kept."""
    desired: list[Object]
    """ControllerRevisions as they should be."""
    history: list[Object]
    """Those of earlier revisions, oldest first."""
    limit: int

    def expired(self, running: AbstractSet[str]) -> list[Ref]:
        """Earlier revisions beyond the limit; never one that still has a Deployment."""
        idle = [obj for obj in self.history if name_of(obj) not in running]
        return [Ref.of(obj) for obj in (idle[: -self.limit] if self.limit else idle)]


def name_of(controller_revision: Object) -> str:
    """The revision a ControllerRevision keeps: the end of its name, since labels can be taken away."""
    return str(controller_revision["metadata"]["name"]).rpartition("-")[2]


def find_revisions(service: LLMService, kept: Sequence[Object], defaults: Defaults) -> Revisions:
    """The revision of ``service``: one already kept for the same words of the user, else rendered now.

    Going back to an earlier spec thus finds the earlier revision, and gives it the newest number.
    """
    words = spec_hash(service)
    history = sorted(kept, key=lambda obj: (obj.get("revision", 0), name_of(obj)))
    rendered = pod_template(service, defaults)
    known = next((obj for obj in reversed(history) if _words(obj) == words), None)
    template = known["data"]["template"] if known else rendered
    current = revision_of(template)
    earlier = [obj for obj in history if name_of(obj) != current]
    newest = earlier[-1].get("revision", 0) if earlier else 0
    same = next((obj for obj in history if name_of(obj) == current), None)
    number = same["revision"] if same and same["revision"] > newest else newest + 1
    return Revisions(
        current=current,
        previous=name_of(earlier[-1]) if earlier else "",
        outdated=revision_of(rendered) != current,
        templates={name_of(obj): obj["data"]["template"] for obj in history} | {current: template},
        desired=[controller_revision(service, template, number, words)],
        history=earlier,
        limit=service.spec.rollout.revision_history_limit,
    )


def _words(controller_revision: Object) -> str:
    return str(controller_revision["metadata"].get("annotations", {}).get(SPEC_HASH, ""))
