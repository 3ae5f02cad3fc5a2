"""Validation of ``podTemplate``: its ``spec`` has no schema, so the API server cannot reject these fields; we do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from blade_operator.spec.errors import Problem
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.types import describe

_OWN: Final = {"engine": ("engine", "check", "fetch"), "router": ("router",)}
"""Containers the operator renders, by the part of the spec whose overlay may add to them."""
_OWNED_FIELDS: Final = ("command", "args")
_LISTS: Final = ("containers", "initContainers", "volumes")


def overlay_problems(spec: LLMServiceSpec) -> Iterator[Problem]:
    """Everything in the overlays that would take a pod out of the operator's hands, or that no merge can place."""
    for part, template in (("engine", spec.engine.pod_template), ("router", spec.router.pod_template)):
        if template is not None:
            yield from _pod(template.spec, f"spec.{part}.podTemplate.spec", _OWN[part])


def _pod(pod: dict[str, Any], path: str, own: tuple[str, ...]) -> Iterator[Problem]:
    for field in _LISTS:
        items = pod.get(field, [])
        if not isinstance(items, list):
            yield Problem(f"{path}.{field}", f"must be a list, not {describe(items)}")
            continue
        for index, item in enumerate(items):
            here = f"{path}.{field}[{index}]"
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                yield Problem(f"{here}.name", "is required: it says what to merge with, or names something new")
            elif field != "volumes" and item["name"] in own:
                yield from _container(item, here)


def _container(container: dict[str, Any], path: str) -> Iterator[Problem]:
    for field in _OWNED_FIELDS:
        if field in container:
            yield Problem(f"{path}.{field}", f"is the operator's in container {container['name']}; remove it")
    for field in ("env", "ports", "volumeMounts"):
        if not isinstance(container.get(field, []), list):
            yield Problem(f"{path}.{field}", f"must be a list, not {describe(container[field])}")
            return
    for index, entry in enumerate(container.get("env", [])):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            yield Problem(f"{path}.env[{index}].name", "is required")
        elif name.startswith("BLADE_"):
            yield Problem(f"{path}.env[{index}].name", f"{name} is set by the operator; use another name")
