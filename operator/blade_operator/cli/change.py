"""``apply``, ``scale``, ``delete``: commands for the running control loop."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from blade_operator.cli import manifests
from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.commands import resource, send
from blade_operator.cluster.local.errors import LocalError
from blade_operator.cluster.local.jobs import JOB_NAME
from blade_operator.cluster.local.layout import Layout, loop_is_running
from blade_operator.cluster.local.store import matches, read_objects
from blade_operator.model.objects import Object
from blade_protocol.labels import GROUP, KIND, NAME, SHORT_NAME, SINGULAR

_JOBS = ("job", "jobs", "job.batch")


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
    targets = list(_named_targets(options.object, options.namespace))
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
        while options.wait and _pods_left(layout, kind, namespace, name):
            if not loop_is_running(layout):
                raise CommandError("the control loop ended before everything had stopped; the next `local up` goes on")
            time.sleep(0.1)
    return int(failed)


def _named_targets(words: Sequence[str], namespace: str) -> Iterator[tuple[str, str, str]]:
    """Kind, namespace and name of each of ``[llm] NAME…``, ``job NAME…``, ``job/NAME…``."""
    default = "Job" if words and words[0] in _JOBS else KIND
    for word in words:
        kind, slash, name = word.rpartition("/")
        if slash or word not in (SHORT_NAME, SINGULAR, *_JOBS):
            yield (("Job" if kind in _JOBS else KIND) if slash else default), namespace, name


def _pods_left(layout: Layout, kind: str, namespace: str, name: str) -> bool:
    pods, label = read_objects(layout.objects, "Pod"), JOB_NAME if kind == "Job" else NAME
    return any(pod["metadata"]["namespace"] == namespace and matches(pod, {label: name}) for pod in pods)
