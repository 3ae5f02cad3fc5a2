"""``apply``, ``scale``, ``delete``: commands for the running control loop."""

from __future__ import annotations

import argparse
import sys
import time

from blade_operator.cli import manifests
from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.commands import resource, send
from blade_operator.cluster.local.errors import LocalError
from blade_operator.cluster.local.layout import Layout, loop_is_running
from blade_operator.cluster.local.store import matches, read_objects
from blade_operator.model.objects import Object
from blade_protocol.labels import GROUP, KIND, NAME, SINGULAR


def named(obj: Object) -> str:
    """``llmservice.serving.bladellm.io/qwen``."""
    return f"{resource(obj['kind'], plural=False)}/{obj['metadata']['name']}"


def apply(options: argparse.Namespace) -> int:
    """Apply every object of the files; a rejected one does not keep the others from being applied."""
    layout = Layout.of(options.name)
    failed = False
    for obj in manifests.read(options.filename):
        obj["metadata"].setdefault("namespace", options.namespace)
        try:
            manifests.admit(obj)
            print(f"{named(obj)} {send(layout, 'apply', obj=obj)}")
        except CommandError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def scale(options: argparse.Namespace) -> int:
    """Set ``spec.replicas``."""
    send(Layout.of(options.name), "scale", namespace=options.namespace, name=options.object, replicas=options.replicas)
    print(f"{SINGULAR}.{GROUP}/{options.object} scaled")
    return 0


def delete(options: argparse.Namespace) -> int:
    """Delete objects by name or manifest, and wait until their pods have ended."""
    layout = Layout.of(options.name)
    targets = [(KIND, options.namespace, name) for name in options.object if name not in ("llm", SINGULAR)]
    targets += [
        (obj["kind"], obj["metadata"].get("namespace", options.namespace), obj["metadata"]["name"])
        for obj in manifests.read(options.filename)
    ]
    if not targets:
        raise CommandError("name the LLMService to delete, or a manifest with -f")
    failed = False
    for kind, namespace, name in targets:
        try:
            send(layout, "delete", kind=kind, namespace=namespace, name=name)
        except LocalError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
            continue
        print(f'{resource(kind, plural=False)} "{name}" deleted', flush=True)
        while options.wait and _pods_left(layout, namespace, name):
            if not loop_is_running(layout):
                raise CommandError("the control loop ended before everything had stopped; the next `local up` goes on")
            time.sleep(0.1)
    return int(failed)


def _pods_left(layout: Layout, namespace: str, name: str) -> bool:
    pods = read_objects(layout.objects, "Pod")
    return any(pod["metadata"]["namespace"] == namespace and matches(pod, {NAME: name}) for pod in pods)
