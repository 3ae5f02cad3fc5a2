"""Command line and environment of a container, expanded as Kubernetes does, with mount paths made real ones."""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from blade_operator.cluster.local.errors import ContainerConfigError
from blade_operator.model.objects import Object

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")

Lookup = Callable[[str, str], Object | None]
"""(kind, name) → the object in the pod's namespace."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` from ``variables``; an unknown one stays as written, and ``$$`` is one dollar sign."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def translate(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace each mount path by the folder it stands for.

    Only where a path begins: at the start, or after ``=``, ``:`` or ``,``; and only where the path's component ends.
    """
    if not mounts:
        return text
    longest_first = sorted(mounts, key=len, reverse=True)
    pattern = rf"(^|[=:,])({'|'.join(map(re.escape, longest_first))})(?=$|[/:,])"
    return re.sub(pattern, lambda match: f"{match[1]}{mounts[match[2]]}", text)


def variables(container: Object, pod: Object, lookup: Lookup) -> dict[str, str]:
    """The container's own environment variables, in order, each able to refer to those before it.

    Raises:
        ContainerConfigError: a Secret or ConfigMap it needs is missing.
    """
    result: dict[str, str] = {}
    for entry in container.get("env", []):
        value = _from_source(entry, pod, lookup) if "valueFrom" in entry else expand(entry.get("value", ""), result)
        if value is not None:
            result[entry["name"]] = value
    return result


def arguments(container: Object, environment: Mapping[str, str], mounts: Mapping[str, Path]) -> list[str]:
    """``command`` and ``args`` ready to run; the program is found next to this Python, then on PATH.

    Raises:
        ContainerConfigError: it is in neither place.
    """
    words = [
        translate(expand(word, environment), mounts) for word in [*container["command"], *container.get("args", [])]
    ]
    return [find_program(words[0]), *words[1:]]


def find_program(name: str) -> str:
    """Path of the program called ``name``."""
    if "/" in name:
        return name
    beside = Path(sys.executable).with_name(name)
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which(name)
    if found is None:
        raise ContainerConfigError(
            f'program "{name}" is neither next to {sys.executable} nor on PATH: install it into this Python '
            "environment (make install)"
        )
    return found


def _from_source(entry: Object, pod: Object, lookup: Lookup) -> str | None:
    source = entry["valueFrom"]
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    kind, reference = (
        ("Secret", source["secretKeyRef"])
        if "secretKeyRef" in source
        else (
            "ConfigMap",
            source["configMapKeyRef"],
        )
    )
    name, key = reference["name"], reference["key"]
    content = contents(lookup(kind, name))
    if content is not None and key in content:
        return content[key].decode()
    if reference.get("optional"):
        return None
    missing = f'{kind.lower()} "{name}" not found' if content is None else f'{kind.lower()} "{name}" has no key "{key}"'
    raise ContainerConfigError(f"{missing}, which environment variable {entry['name']} is to come from")


def contents(obj: Object | None) -> dict[str, bytes] | None:
    """Keys and values of a ConfigMap or Secret."""
    if obj is None:
        return None
    if obj["kind"] == "Secret":
        found = {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
        return found | {key: value.encode() for key, value in (obj.get("stringData") or {}).items()}
    return {key: value.encode() for key, value in (obj.get("data") or {}).items()}


def field_of(pod: Object, path: str) -> str:
    """The value of a field of ``pod`` (``fieldRef``).

    Raises:
        ContainerConfigError: it names something else than what pods may learn of themselves here.
    """
    if path in ("status.podIP", "status.hostIP"):
        return "127.0.0.1"
    if path == "spec.nodeName":
        return "localhost"
    label = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if label:
        return str((pod["metadata"].get(label[1]) or {}).get(label[2], ""))
    if path in ("metadata.name", "metadata.namespace", "metadata.uid"):
        return str(pod["metadata"][path.removeprefix("metadata.")])
    raise ContainerConfigError(f"fieldRef {path} is not supported by the local runtime")
