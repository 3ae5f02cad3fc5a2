"""Manifests: read from files or standard input, or generated for a model; validated as an API server would."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.fields import require_supported
from blade_operator.cluster.local.layout import Layout
from blade_operator.model.objects import Object
from blade_operator.spec import SpecError, apply_defaults, parse_adapter, parse_service
from blade_operator.spec.model_fields import HUBS, STORES, URI
from blade_protocol.labels import API_VERSION, KIND, OWN_KINDS

_APPLIED = (*OWN_KINDS, "Secret", "ConfigMap", "Job")
CACHE_CLAIM = "bladellm-models"
"""The claim that keeps downloads for later services, whatever their names."""
IDLE_CONCURRENCY = 16
"""Requests that an engine is to have at the same time, before another one is started."""
_DOWNLOADED = tuple(f"{scheme}://" for scheme in (*HUBS, *STORES))
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class _Loader(yaml.SafeLoader):
    """Loads YAML as an API server does: a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} comes twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(names: list[str]) -> list[Object]:
    """All objects in the files ``names`` (``-``: standard input), in order.

    Raises:
        CommandError: a file is not there, is not YAML, or holds something else than objects.
    """
    return [obj for name in names for obj in _read(name)]


def _read(name: str) -> list[Object]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, _Loader))
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    objects: list[Any] = []
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
            objects += document["items"]
        elif document is not None:
            objects.append(document)
    for document in objects:
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict) or "kind" not in document:
            raise CommandError(f"{name}: every document must be an object with apiVersion, kind and metadata")
    if not objects:
        raise CommandError(f"{name}: no objects in it")
    return objects


def admit(obj: Object) -> Object:
    """``obj`` with the defaults filled in.

    Raises:
        CommandError: its kind cannot be applied, or its fields are wrong; names each by its path.
    """
    kind = obj.get("kind")
    if kind not in _APPLIED:
        raise CommandError(f"{kind} objects cannot be applied here, only {', '.join(_APPLIED)}")
    if problems := list(_problems(obj)):
        raise CommandError(_invalid(obj, problems))
    if kind in ("Secret", "ConfigMap"):
        return obj
    if "spec" not in obj:
        raise CommandError(_invalid(obj, ["spec: is required"]))
    if kind == "Job":
        require_supported(obj)
        return obj
    filled = apply_defaults(obj)
    try:
        parse_service(filled) if kind == KIND else parse_adapter(filled)
    except SpecError as error:
        raise CommandError(_invalid(obj, error.problems)) from error
    return filled


def _invalid(obj: Object, problems: Sequence[object]) -> str:
    listed = "".join(f"\n  {problem}" for problem in problems)
    return f'the {obj["kind"]} "{obj["metadata"].get("name", "")}" is invalid:{listed}'


def _problems(obj: Object) -> Iterator[str]:
    """Yields problems of the parts that every object has, and of those of a Secret or ConfigMap."""
    metadata, kind = obj["metadata"], obj["kind"]
    if not isinstance(metadata.get("name"), str):
        yield "metadata.name: is required and must be a string"
    if not isinstance(metadata.get("namespace", ""), str):
        yield "metadata.namespace: must be a string"
    for field in ("labels", "annotations"):
        yield from _not_strings(metadata.get(field), f"metadata.{field}")
    if kind in OWN_KINDS:
        return
    version = "batch/v1" if kind == "Job" else "v1"
    if obj.get("apiVersion") != version:
        yield f"apiVersion: must be {version}"
    for field in ("data", "stringData"):
        yield from _not_strings(obj.get(field), field)
    if kind == "Secret" and isinstance(obj.get("data"), dict):
        for key, value in obj["data"].items():
            try:
                base64.b64decode(value, validate=True)
            except (ValueError, TypeError):
                yield f"data.{key}: must be base64; plain text goes into stringData"


def _not_strings(value: Any, path: str) -> Iterator[str]:
    if value is not None and not isinstance(value, dict):
        yield f"{path}: must be an object"
    for key, item in (value or {}).items() if isinstance(value, dict) else ():
        if not isinstance(key, str) or not isinstance(item, str):
            yield f"{path}.{key}: must be a string; write it in quotes"


def for_model(model: str, replicas: int, idle_to_zero: str | None = None, standby: int = 0) -> Object:
    """An LLMService for a model: a folder, the id of a model on the hub, or the URI of one to download.

    ``idle_to_zero``: it has no engine when no request has come for so long, and at most ``replicas`` otherwise.
    ``standby``: so many engines beside these are kept warm; ``replicas`` serve then, at most with ``idle_to_zero``.

    Raises:
        CommandError: it is neither.
    """
    folder, cache = Path(model).expanduser(), {}
    if folder.is_dir():
        folder = folder.resolve()
        uri = f"file://{folder}"
        name = folder.parent.name if folder.name == "model" else folder.name
    elif _HUB_ID.fullmatch(model) or (model.startswith(_DOWNLOADED) and re.fullmatch(URI.strip("^$"), model)):
        uri = model if "://" in model else f"hf://{model}"
        name = re.split("[:@]", uri.rstrip("/").rpartition("/")[2])[0]
        cache = {"cache": {"claimName": CACHE_CLAIM}}
    else:
        raise CommandError(
            f"--model {model}: there is no such folder, and it is no hub id such as Qwen/Qwen2.5-0.5B, nor hf://, "
            "modelscope://, s3://, oss:// or oci:// with what belongs behind it"
        )
    size: dict[str, Any] = {"replicas": replicas}
    if idle_to_zero is not None or standby:
        least = {"min": replicas} if idle_to_zero is None else {"min": 0, "idleToZero": idle_to_zero}
        scaling = {"mode": "Concurrency", "max": replicas, "target": {"concurrency": IDLE_CONCURRENCY}}
        size = {"scaling": scaling | least | ({"standby": standby} if standby else {})}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _object_name(name)},
        "spec": {"model": {"uri": uri, **cache}, **size},
    }


def save(manifest: Object, layout: Layout) -> Path:
    """Save a generated manifest where its user may read and edit it."""
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
