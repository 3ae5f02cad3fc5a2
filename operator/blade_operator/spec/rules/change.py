"""Rules of changes: what may not become of a field once it is set. The API server evaluates them on every update.

A claim's class and access modes are immutable in Kubernetes and its size can only grow: without these rules a changed
spec would be accepted and of no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, get_args

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.model_fields import AccessMode, ModelCache
from blade_operator.spec.quantity import parse_quantity


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """One rule of an object and what it was before (``oldSelf``)."""

    at: tuple[str, ...]
    """Path of the object the CEL expression calls ``self``."""
    field: str
    """Path of the field to change back."""
    cel: str
    holds: Callable[[LLMServiceSpec, LLMServiceSpec], bool]
    """Of the spec before and after."""
    message: str

    @property
    def schema(self) -> dict[str, str]:
        """The rule as it stands in the CRD."""
        return {"rule": self.cel, "message": self.message, "fieldPath": self.field.removeprefix(".".join(self.at))}


def _claim(spec: LLMServiceSpec) -> ModelCache | None:
    """The cache, where the operator makes a claim for it."""
    cache = spec.model.cache
    return cache if cache is not None and cache.size is not None else None


def _of_claim(holds: Callable[[ModelCache, ModelCache], bool]) -> Callable[[LLMServiceSpec, LLMServiceSpec], bool]:
    def judge(old: LLMServiceSpec, new: LLMServiceSpec) -> bool:
        before, after = _claim(old), _claim(new)
        return before is None or after is None or holds(before, after)

    return judge


def _modes(cache: ModelCache) -> set[str]:
    return {*cache.access_modes} or {"ReadWriteOnce"}


_CACHE: Final = ("spec", "model", "cache")
_NO_CLAIM: Final = "!has(oldSelf.size) || !has(self.size)"


def _modes_in_cel(name: str) -> str:
    modes = f"{name}.accessModes"
    return f"(has({modes}) && size({modes}) > 0 ? {modes} : ['ReadWriteOnce'])"


_BEFORE, _AFTER = _modes_in_cel("oldSelf"), _modes_in_cel("self")
_SIZE: Final = "quantity(string({}.size))"

CHANGE_RULES: Final[tuple[ChangeRule, ...]] = (
    ChangeRule(
        at=_CACHE,
        field="spec.model.cache.storageClassName",
        cel=f"{_NO_CLAIM} || (has(self.storageClassName) ? has(oldSelf.storageClassName) "
        "&& self.storageClassName == oldSelf.storageClassName : !has(oldSelf.storageClassName))",
        holds=_of_claim(lambda old, new: old.storage_class_name == new.storage_class_name),
        message="the class of a claim cannot change: name one of your own with claimName, or create the service anew",
    ),
    ChangeRule(
        at=_CACHE,
        field="spec.model.cache.accessModes",
        cel=f"{_NO_CLAIM} || {list(get_args(AccessMode))}.all(m, (m in {_BEFORE}) == (m in {_AFTER}))",
        holds=_of_claim(lambda old, new: _modes(old) == _modes(new)),
        message="the access modes of a claim cannot change: name one of your own with claimName, or create the "
        "service anew",
    ),
    ChangeRule(
        at=_CACHE,
        field="spec.model.cache.size",
        cel=f"{_NO_CLAIM} || {_SIZE.format('self')}.compareTo({_SIZE.format('oldSelf')}) >= 0",
        holds=_of_claim(lambda old, new: parse_quantity(new.size or 0) >= parse_quantity(old.size or 0)),
        message="a claim can grow and never shrink: leave the size, or name a smaller claim of your own with claimName",
    ),
)
