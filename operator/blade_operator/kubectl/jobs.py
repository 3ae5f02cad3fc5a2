"""Runs one Job to its end, prints what its program prints, and deletes it, whatever happens."""

from __future__ import annotations

import contextlib
import random
import string
import time
from typing import Final

from blade_operator.cli.errors import CommandError
from blade_operator.command_line import one_line, safe
from blade_operator.kubectl.output import warn
from blade_operator.kubectl.places.place import LogRange, Place
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.render import Defaults
from blade_operator.render.jobs.tool import CONTAINER
from blade_protocol.labels import OPERATOR

JOB_NAME: Final = "batch.kubernetes.io/job-name"
"""Label of a Job's pods: Kubernetes' own."""
_POLL: Final = 1.0
_HOPELESS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"})
_PATIENCE: Final = 3
"""How often a container may be seen in such a state: the first pull of an image may fail and the next succeed."""


def job_name(prefix: str) -> str:
    """A name that no other Job has."""
    return f"{prefix}-{''.join(random.choices(string.ascii_lowercase + string.digits, k=6))}"


def installed(place: Place, operator_namespace: str) -> Defaults:
    """The installation's engine image, and whether its pods may name ids: what its operator was started with; this
    release's defaults where one may not look there."""
    try:
        pods = place.list("Pod", operator_namespace, {"app.kubernetes.io/name": OPERATOR})
    except CommandError:
        pods = []  # one may look into one's own namespace only
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    words = [word for each in containers for field in ("command", "args") for word in each.get(field) or ()]
    openshift = "--openshift" in words
    for number, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name == "--engine_image" and (image := value if sign else "".join(words[number + 1 : number + 2])):
            return Defaults(engine_image=image, openshift=openshift)
    return Defaults(openshift=openshift)


def run_job(place: Place, job: Object, timeout: float) -> int:
    """The exit code of the Job's program, whose output is printed when it has ended.

    Raises:
        CommandError: it did not start or end in time; with the cluster's reason.
    """
    metadata = job["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        place.create(job)  # which may have done it without a response in time
        warn(f"job/{name} runs in namespace {namespace} ...")
        pod, state = _wait(place, namespace, name, timeout)
        text = place.log(pod, CONTAINER, LogRange(limit=4 * 1024 * 1024)).decode(errors="replace")
        print(safe(text.replace("\r\n", "\n")), end="" if text.endswith("\n") or not text else "\n")
        return state.exit_code
    finally:
        with contextlib.suppress(CommandError):  # it goes by itself after a while; what went wrong before is to be said
            place.delete("Job", namespace, name)


def _wait(place: Place, namespace: str, name: str, timeout: float) -> tuple[Object, podutil.Termination]:
    """The pod, and how its container ended."""
    end, shown, hopeless = time.monotonic() + timeout, "", 0
    while True:
        pods = place.list("Pod", namespace, {JOB_NAME: name})
        why = "no pod was made" if not pods else ""
        for pod in pods:
            state = podutil.container(pod, CONTAINER)
            if state is not None and state.termination is not None:
                return pod, state.termination
            why = waits_for(pod)
            hopeless += state is not None and state.waiting in _HOPELESS
        if not pods and (failed := _failure(place.get("Job", namespace, name))):
            raise CommandError(f"job/{name} failed: {failed}")
        if hopeless > _PATIENCE:
            raise CommandError(f"job/{name} cannot start: {why}")
        if why and why != shown:
            shown = why
            warn(f"  {why}")
        if time.monotonic() > end:
            raise CommandError(f"job/{name} did not end within {timeout:g} s: {why or 'it runs'}; see --timeout")
        time.sleep(_POLL)


def _failure(job: Object) -> str:
    conditions = job.get("status", {}).get("conditions") or ()
    return next((one_line(each.get("message", "")) for each in conditions if each["type"] == "Failed"), "")


def waits_for(pod: Object) -> str:
    """Why a pod does not run yet, in the cluster's words; empty when it does."""
    scheduled = podutil.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"not scheduled: {scheduled.get('message') or scheduled.get('reason', '')}"
    for state in podutil.containers(pod):
        if state.waiting:
            return ": ".join(filter(None, (state.waiting, state.waiting_message)))
    return ""
