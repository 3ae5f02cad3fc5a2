"""``get``: objects as tables, YAML, JSON or names, once or as they change. Reads the files; needs no control loop."""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time

from blade_operator.cli import tables
from blade_operator.cli.errors import CommandError
from blade_operator.cli.manifests import dump
from blade_operator.cluster.local.commands import resource
from blade_operator.cluster.local.layout import Layout, loop_is_running
from blade_operator.cluster.local.store import read_objects
from blade_operator.model.objects import Object, Ref
from blade_operator.program import program
from blade_protocol.labels import (
    ADAPTER_KIND,
    ADAPTER_PLURAL,
    ADAPTER_SHORT_NAME,
    ADAPTER_SINGULAR,
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
)

_KINDS = {
    KIND: (SHORT_NAME, SINGULAR, PLURAL),
    ADAPTER_KIND: (ADAPTER_SHORT_NAME, ADAPTER_SINGULAR, ADAPTER_PLURAL),
    "Pod": ("po", "pod", "pods"),
    "Deployment": ("deploy", "deployment", "deployments"),
    "StatefulSet": ("sts", "statefulset", "statefulsets"),
    "Job": ("job", "jobs"),
    "Service": ("svc", "service", "services"),
    "ConfigMap": ("cm", "configmap", "configmaps"),
    "Secret": ("secret", "secrets"),
    "Event": ("ev", "event", "events"),
    "ControllerRevision": ("controllerrevision", "controllerrevisions"),
    "PodDisruptionBudget": ("pdb", "poddisruptionbudget", "poddisruptionbudgets"),
    "ServiceAccount": ("sa", "serviceaccount", "serviceaccounts"),
}
_ALL = ("Pod", "Service", "Deployment", "StatefulSet", "Job", KIND)
_POLL = 0.3


def run(options: argparse.Namespace) -> int:
    """Print the requested objects."""
    layout = Layout.of(options.name)
    kind, _, name = options.kind.partition("/")
    name = name or options.object
    kinds = _ALL if kind == "all" else (kind_of(kind),)
    if not loop_is_running(layout):
        suffix = "" if options.name == "default" else f" --name {options.name}"
        print(
            f"note: no control loop is running, so this is the last known state; `{program()} local up{suffix}` "
            "starts one",
            file=sys.stderr,
        )
    objects = find(layout, kinds, options.namespace, name)
    if name and not objects and not options.watch:
        raise CommandError(f'{resource(kinds[0])} "{name}" not found')
    _print(objects, kinds, options, single=bool(name))
    if options.watch:
        _watch(layout, kinds, name, options, objects)
    return 0


def kind_of(word: str) -> str:
    """The kind that ``word`` names.

    Raises:
        CommandError: none.
    """
    for kind, words in _KINDS.items():
        if word.lower().removesuffix(f".{GROUP}") in words:
            return kind
    known = ", ".join(words[0] for words in _KINDS.values())
    raise CommandError(f'there is no resource type "{word}": use all or one of {known}')


def find(layout: Layout, kinds: tuple[str, ...], namespace: str, name: str | None) -> list[Object]:
    """The objects of these kinds, by name."""
    found = [obj for kind in kinds for obj in read_objects(layout.objects, kind)]
    chosen = [
        obj for obj in found if obj["metadata"]["namespace"] == namespace and name in (None, obj["metadata"]["name"])
    ]
    if kinds == ("Event",):
        chosen.sort(key=lambda event: str(event["lastTimestamp"]))
    return chosen


def shown(obj: Object) -> Object:
    """``obj`` as kubectl shows it: without the bookkeeping of managed fields, Secrets included."""
    obj = copy.deepcopy(obj)
    obj["metadata"].pop("managedFields", None)
    order = ("apiVersion", "kind", "metadata", "spec", "data", "status")
    first = {key: obj[key] for key in order if key in obj}
    return first | {key: value for key, value in obj.items() if key not in first}


def _print(objects: list[Object], kinds: tuple[str, ...], options: argparse.Namespace, *, single: bool) -> None:
    if options.output in ("yaml", "json"):
        several = {"apiVersion": "v1", "kind": "List", "items": [shown(obj) for obj in objects]}
        content = shown(objects[0]) if single else several
        print(json.dumps(content, indent=4) if options.output == "json" else dump(content).rstrip("\n"))
    elif options.output == "name":
        for obj in objects:
            print(_prefixed(obj))
    elif not objects:
        print(f"No resources found in {options.namespace} namespace.", file=sys.stderr)
    else:
        blocks = [[obj for obj in objects if obj["kind"] == kind] for kind in kinds]
        for number, block in enumerate(block for block in blocks if block):
            if number:
                print()
            rows = [tables.row(obj, wide=options.output == "wide") for obj in block]
            if len(kinds) > 1:
                rows = [[("NAME", _prefixed(obj)), *cells[1:]] for obj, cells in zip(block, rows, strict=True)]
            print("\n".join(tables.render(rows)))


def _prefixed(obj: Object) -> str:
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{'.'.join(filter(None, (obj['kind'].lower(), group)))}/{obj['metadata']['name']}"


def _watch(
    layout: Layout, kinds: tuple[str, ...], name: str | None, options: argparse.Namespace, objects: list[Object]
) -> None:
    """Print each change until interrupted, one line (or document) each."""
    sys.stdout.flush()
    seen = {Ref.of(obj): obj["metadata"]["resourceVersion"] for obj in objects}
    widths: list[int] = []
    if objects and options.output in (None, "wide"):
        list(tables.render([tables.row(obj, wide=options.output == "wide") for obj in objects], widths))
    while True:
        time.sleep(_POLL)
        for obj in find(layout, kinds, options.namespace, name):
            ref, version = Ref.of(obj), obj["metadata"]["resourceVersion"]
            if seen.get(ref) == version:
                continue
            if options.output in ("yaml", "json"):
                print("---" if options.output == "yaml" else "", flush=True)
                _print([obj], kinds, options, single=True)
            elif options.output == "name":
                print(_prefixed(obj))
            else:
                rows = [tables.row(obj, wide=options.output == "wide")]
                print("\n".join(tables.render(rows, widths, header=not seen)))
            seen[ref] = version
            sys.stdout.flush()
