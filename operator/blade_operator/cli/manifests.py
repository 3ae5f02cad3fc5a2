"""Manifests: read from files or standard input, or made for a model; checked as an API server would."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.layout import Layout
from blade_operator.objects import Object
from blade_operator.spec import SpecError, apply_defaults, parse_service
from blade_protocol.labels import API_VERSION, KIND

_APPLIED = (KIND, "Secret", "ConfigMap")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def read(names: list[str]) -> list[Object]:
    """All objects in the files ``names`` (``-``: standard input), in order.

    Raises:
        CommandError: a file is not there, is not YAML, or holds something else than objects.
    """
    return [obj for name in names for obj in _read(name)]


def _read(name: str) -> list[Object]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    objects = [document for document in documents if document is not None]
    for document in objects:
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict) or "kind" not in document:
            raise CommandError(f"{name}: every document must be an object with apiVersion, kind and metadata")
    if not objects:
        raise CommandError(f"{name}: no objects in it")
    return objects


def admit(obj: Object) -> Object:
    """``obj`` with the defaults filled in.

    Raises:
        CommandError: it is of another kind than people apply, or its fields are wrong; names each by its path.
    """
    kind = obj.get("kind")
    if kind not in _APPLIED:
        raise CommandError(f"{kind} objects cannot be applied here, only {', '.join(_APPLIED)}")
    if kind != KIND:
        return obj
    filled = apply_defaults(obj)
    try:
        parse_service(filled)
    except SpecError as error:
        problems = "".join(f"\n  {problem}" for problem in error.problems)
        raise CommandError(f'the {KIND} "{obj["metadata"].get("name", "")}" is invalid:{problems}') from error
    return filled


def for_model(model: str, replicas: int) -> Object:
    """An LLMService for a model: a folder, or the id of a model on the hub.

    Raises:
        CommandError: it is neither.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        uri = f"file://{folder}"
        name = folder.parent.name if folder.name == "model" else folder.name
    elif _HUB_ID.fullmatch(model.removeprefix("hf://")):
        uri = f"hf://{model.removeprefix('hf://')}"
        name = uri.rpartition("/")[2]
    else:
        raise CommandError(f"--model {model}: there is no such folder, and it is no hub id such as Qwen/Qwen2.5-0.5B")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _object_name(name)},
        "spec": {"model": {"uri": uri}, "replicas": replicas},
    }


def save(manifest: Object, layout: Layout) -> Path:
    """Write a manifest that was made here to where its user may read and edit it."""
    path = layout.root / "manifests" / f"{manifest['metadata']['name']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(manifest), encoding="utf-8")
    return path


def dump(obj: Any) -> str:
    """YAML in Kubernetes' order of fields and style."""
    return yaml.safe_dump(obj, sort_keys=False, allow_unicode=True, width=1000)


def _object_name(text: str) -> str:
    """A name for objects, short enough for the names made of it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "model"
