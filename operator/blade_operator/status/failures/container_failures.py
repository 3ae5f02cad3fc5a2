"""The first failing container of a pod: why it cannot start, or how it ended, and which field to change."""

from __future__ import annotations

import re

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.pods import CHECK, ENGINE, FETCH, ROUTER, ContainerState, Termination
from blade_operator.status.deduplication import round_down
from blade_operator.status.failures.failure import LINE_LIMIT, Failure, killing_signal, with_hint

STUCK_AFTER = 3
"""Restarts after which an engine or router is not expected to recover by itself."""
STUCK_IN_INIT = 2
"""Restarts after which an init container is not: a check that failed twice will fail again."""
WRONG_FLAGS = 2
"""Exit code of an engine that was started with an unknown flag or value."""
HEALTHY_S = 600.0
"""A run of so many seconds was healthy; kubelets reset their back-off after it."""
_BACK_OFF = "CrashLoopBackOff"
_OUT_OF_MEMORY = "OOMKilled"
_UNOBSERVED = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Termination reasons of a run whose end nobody observed: its exit code is made up."""
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
"""Waiting reasons of one failure, between which kubelets alternate."""
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
    ready = podutil.is_ready(pod)
    for state in podutil.containers(pod):
        passed = state.termination is not None and state.termination.exit_code == 0
        termination = (
            state.last_termination
            if state.running or (passed and state.init)
            else state.termination or state.last_termination
        )
        blocked = state.waiting not in _HARMLESS
        failed_end = termination is not None and (termination.exit_code != 0 or not state.init)
        if not blocked and not failed_end:
            continue
        recovered = ready or (state.init and passed)
        stuck = not recovered and _is_stuck(state, termination, blocked)
        return Failure(
            role=podutil.role(pod),
            pod=str(pod["metadata"]["name"]),
            container=state.name,
            reason=_reason(state, termination, stuck),
            message=_describe(pod, state, termination),
            exit_code=termination.exit_code if termination else 0,
            restarts=round_down(state.restarts),
            last_log=_last_line(pod, state, termination),
            failing=not recovered,
            stuck=stuck,
        )
    return None


def report_line(pod: Object, name: str) -> str:
    """The first problem in the report that an init container of ours left; empty when it left none."""
    if name == FETCH:
        fetched = podutil.fetch_report(pod)
        return fetched.message if fetched and not fetched.ready else ""
    report = podutil.check_report(pod)
    bad = [item for item in report.items if item.status != "PASS"] if report else []
    # Where the model cannot be read, the other items follow from that.
    for item in sorted(bad, key=lambda item: (item.status != "FAILED", item.name != "check_model")):
        return f"{item.name} {item.status}: {item.detail}"
    return ""


def _is_stuck(state: ContainerState, termination: Termination | None, blocked: bool) -> bool:
    if termination is None:
        return blocked
    if termination.reason in _NEVER_RAN or (blocked and state.waiting != _BACK_OFF):
        return True
    if termination.seconds >= HEALTHY_S:
        return False
    # Also while it runs once more: that run has to succeed first.
    return state.restarts >= (STUCK_IN_INIT if state.init else STUCK_AFTER) or (state.init and blocked)


def _reason(state: ContainerState, termination: Termination | None, stuck: bool) -> str:
    if state.waiting in _PULL:
        return "ImagePullBackOff"
    if termination is not None and termination.reason == _OUT_OF_MEMORY:
        return _OUT_OF_MEMORY
    if termination is not None and termination.reason in _NEVER_RAN:
        return "RunContainerError"
    if state.waiting not in _HARMLESS:
        return state.waiting
    if stuck:
        return _BACK_OFF
    if termination is None:
        return ""
    return termination.reason or ("Completed" if termination.exit_code == 0 else "Error")


def _describe(pod: Object, state: ContainerState, termination: Termination | None) -> str:
    part = "router" if state.name == ROUTER else "engine"
    if state.waiting in _IMAGE:
        return _image(pod, state, part)
    if termination is None:
        cause = _IDS.sub("", _CHAIN.sub("", state.waiting_message)) or state.waiting
        return with_hint(f"{state.name} cannot start: {cause}", _start_hint(pod, state, part))
    times = _times(state)
    if termination.reason in _NEVER_RAN:
        cause = _CHAIN.sub("", termination.message) or termination.reason
        return with_hint(f"{state.name} cannot start: {cause}", f"spec.{part}.image") + times
    if termination.reason == _OUT_OF_MEMORY:
        limit = podutil.container_spec(pod, state.name).get("resources", {}).get("limits", {}).get("memory")
        at = f" at its limit of {limit} (spec.{part}.resources.limits.memory)" if limit else ""
        return f"{state.name} ran out of memory (OOMKilled){at}{times}"
    if termination.reason in _UNOBSERVED:
        what = "ended, its exit code is unknown"
    elif (killer := killing_signal(termination.exit_code)) is not None:
        what = f"was killed by {killer.name} (exit {termination.exit_code})"
    elif (state.name, termination.exit_code) == (ENGINE, WRONG_FLAGS):
        what = f"refuses its flags (exit {WRONG_FLAGS}; spec.engine.extraArgs)"
    elif termination.exit_code:
        what = f"failed (exit {termination.exit_code})"
    else:
        # A container stopped after a failed liveness probe may exit with 0, which nothing in the pod distinguishes.
        what = "ended, by itself or after a failed liveness probe (exit 0)"
    return f"{state.name} {what}{times}"


def _times(state: ContainerState) -> str:
    count = round_down(state.restarts)
    if not count:
        return ""
    pause = ", each time after a longer pause" if count > 1 else ""
    return f", restarted {'at least ' if count >= 5 else ''}{count} time{'s' if count > 1 else ''}{pause}"


def _image(pod: Object, state: ContainerState, part: str) -> str:
    image = podutil.container_spec(pod, state.name).get("image", "")
    cause = _PULL_CHAIN.sub("", state.waiting_message)
    field = f"spec.{part}.image"
    if re.search(r"unauthorized|denied|authorization failed|authentication required", cause):
        field += f", or spec.{part}.podTemplate for an imagePullSecret"
    verb = "cannot be pulled" if state.waiting in _PULL else "cannot be used"
    return with_hint(f"image {image} {verb}{f': {cause}' if cause else ''}", field)


def _start_hint(pod: Object, state: ContainerState, part: str) -> str:
    cause = state.waiting_message.lower()
    if "run as root" in cause or state.waiting in ("RunContainerError", "CreateContainerError"):
        return f"spec.{part}.image"
    if state.name == FETCH and "secret" in cause:
        variables = podutil.container_spec(pod, FETCH).get("env") or []
        tokens = [entry for entry in variables if entry["name"] in ("HF_TOKEN", "MODELSCOPE_API_TOKEN")]
        return "spec.model.tokenSecretRef" if tokens else "spec.model.credentialsSecretRef"
    return f"spec.{part}.podTemplate" if "secret" in cause or "configmap" in cause else ""


def _last_line(pod: Object, state: ContainerState, termination: Termination | None) -> str:
    if termination is None or termination.reason in _NEVER_RAN or not termination.message.strip():
        return ""
    if state.name in (CHECK, FETCH) and termination.message.startswith("{"):
        return report_line(pod, state.name)[:LINE_LIMIT]
    return termination.message.strip().splitlines()[-1].strip()[:LINE_LIMIT]
