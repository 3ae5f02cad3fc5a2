"""The first failing container of a pod: why it cannot start, or how it ended, and which field to change."""

from __future__ import annotations

import re

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.pods import CHECK, ENGINE, FETCH, ROUTER, ContainerState, End
from blade_operator.status.failure import LINE_LIMIT, Failure, killing_signal, with_hint
from blade_operator.status.steady import round_down

STUCK_AFTER = 3
"""Restarts after which an engine or router is not expected to recover by itself."""
STUCK_IN_INIT = 2
"""The same for what runs before it: a check that failed twice will fail again."""
WRONG_FLAGS = 2
"""Exit code of an engine that was given a flag or value it does not know."""
HEALTHY_S = 600.0
"""A run this long was a healthy one; kubelets begin their back-off anew after it."""
_BACK_OFF = "CrashLoopBackOff"
_OUT_OF_MEMORY = "OOMKilled"
_UNSEEN = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Reasons of an end that nobody saw: its exit code is made up."""
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
"""One failure with names that take turns."""
_IMAGE = _PULL | {"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
_CHAIN = re.compile(r"^.*(?:unable to start container process: |rpc error: code = \w+ desc = )", re.DOTALL)
_PULL_CHAIN = re.compile(
    r'^(?:Back-off pulling image "[^"]*"(?:: )?|ErrImagePull: |rpc error: code = \w+ desc = '
    r'|failed to pull and unpack image "[^"]*": |failed to resolve (?:reference "[^"]*"|image): )+'
)
_IDS = re.compile(r' \(pod: "[^"]*", container: [^)]*\)')


def container_failure(pod: Object) -> Failure | None:
    """The first container of ``pod`` that fails or failed, or None."""
    ready = read.is_ready(pod)
    for state in read.containers(pod):
        passed = state.end is not None and state.end.exit_code == 0
        end = state.last_end if state.running or (passed and state.init) else state.end or state.last_end
        blocked = state.waiting not in _HARMLESS
        failed_end = end is not None and (end.exit_code != 0 or not state.init)
        if not blocked and not failed_end:
            continue
        recovered = ready or (state.init and passed)
        stuck = not recovered and _is_stuck(state, end, blocked)
        return Failure(
            role=read.role(pod),
            pod=str(pod["metadata"]["name"]),
            container=state.name,
            reason=_reason(state, end, stuck),
            message=_describe(pod, state, end),
            exit_code=end.exit_code if end else 0,
            restarts=round_down(state.restarts),
            last_log=_last_line(pod, state, end),
            broken=not recovered,
            stuck=stuck,
        )
    return None


def report_line(pod: Object, name: str) -> str:
    """What our own init container says was wrong, from the report it left; empty when it left none."""
    if name == FETCH:
        fetched = read.fetch_report(pod)
        return fetched.message if fetched and not fetched.ready else ""
    report = read.check_report(pod)
    bad = [item for item in report.items if item.status != "PASS"] if report else []
    # Where the model cannot be read, nothing else can be said of it.
    for item in sorted(bad, key=lambda item: (item.status != "FAILED", item.name != "check_model")):
        return f"{item.name} {item.status}: {item.detail}"
    return ""


def _is_stuck(state: ContainerState, end: End | None, blocked: bool) -> bool:
    if end is None:
        return blocked
    if end.reason in _NEVER_RAN or (blocked and state.waiting != _BACK_OFF):
        return True
    if end.seconds >= HEALTHY_S:
        return False
    # While it tries once more, too: it would have to prove that this time it goes well.
    return state.restarts >= (STUCK_IN_INIT if state.init else STUCK_AFTER) or (state.init and blocked)


def _reason(state: ContainerState, end: End | None, stuck: bool) -> str:
    if state.waiting in _PULL:
        return "ImagePullBackOff"
    if end is not None and end.reason == _OUT_OF_MEMORY:
        return _OUT_OF_MEMORY
    if end is not None and end.reason in _NEVER_RAN:
        return "RunContainerError"
    if state.waiting not in _HARMLESS:
        return state.waiting
    if stuck:
        return _BACK_OFF
    if end is None:
        return ""
    return end.reason or ("Completed" if end.exit_code == 0 else "Error")


def _describe(pod: Object, state: ContainerState, end: End | None) -> str:
    part = "router" if state.name == ROUTER else "engine"
    if state.waiting in _IMAGE:
        return _image(pod, state, part)
    if end is None:
        words = _IDS.sub("", _CHAIN.sub("", state.waiting_message)) or state.waiting
        return with_hint(f"{state.name} cannot start: {words}", _start_hint(state, part))
    times = _times(state)
    if end.reason in _NEVER_RAN:
        words = _CHAIN.sub("", end.message) or end.reason
        return with_hint(f"{state.name} cannot start: {words}", f"spec.{part}.image") + times
    if end.reason == _OUT_OF_MEMORY:
        limit = read.spec_of(pod, state.name).get("resources", {}).get("limits", {}).get("memory")
        at = f" at its limit of {limit} (spec.{part}.resources.limits.memory)" if limit else ""
        return f"{state.name} ran out of memory (OOMKilled){at}{times}"
    if end.reason in _UNSEEN:
        what = "ended, its exit code is unknown"
    elif (killer := killing_signal(end.exit_code)) is not None:
        what = f"was killed by {killer.name} (exit {end.exit_code})"
    elif (state.name, end.exit_code) == (ENGINE, WRONG_FLAGS):
        what = f"refuses its flags (exit {WRONG_FLAGS}; spec.engine.extraArgs)"
    elif end.exit_code:
        what = f"failed (exit {end.exit_code})"
    else:
        # A container that is told to end after a failed liveness probe may end well: nothing in the pod tells.
        what = "ended, by itself or after a failed liveness probe (exit 0)"
    return f"{state.name} {what}{times}"


def _times(state: ContainerState) -> str:
    count = round_down(state.restarts)
    if not count:
        return ""
    pause = ", each time after a longer pause" if count > 1 else ""
    return f", restarted {'at least ' if count >= 5 else ''}{count} time{'s' if count > 1 else ''}{pause}"


def _image(pod: Object, state: ContainerState, part: str) -> str:
    image = read.spec_of(pod, state.name).get("image", "")
    words = _PULL_CHAIN.sub("", state.waiting_message)
    field = f"spec.{part}.image"
    if re.search(r"unauthorized|denied|authorization failed|authentication required", words):
        field += f", or spec.{part}.podTemplate for an imagePullSecret"
    verb = "cannot be pulled" if state.waiting in _PULL else "cannot be used"
    return with_hint(f"image {image} {verb}{f': {words}' if words else ''}", field)


def _start_hint(state: ContainerState, part: str) -> str:
    words = state.waiting_message.lower()
    if "run as root" in words or state.waiting in ("RunContainerError", "CreateContainerError"):
        return f"spec.{part}.image"
    if state.name == FETCH and "secret" in words:
        return "spec.model.tokenSecretRef"
    return f"spec.{part}.podTemplate" if "secret" in words or "configmap" in words else ""


def _last_line(pod: Object, state: ContainerState, end: End | None) -> str:
    if end is None or end.reason in _NEVER_RAN or not end.message.strip():
        return ""
    if state.name in (CHECK, FETCH) and end.message.startswith("{"):
        return report_line(pod, state.name)[:LINE_LIMIT]
    return end.message.strip().splitlines()[-1].strip()[:LINE_LIMIT]
