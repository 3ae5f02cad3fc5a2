"""The conditions of an LLMService: Ready and the conditions it depends on, Progressing, Degraded.

Ready depends on the pods alone. What the check, the download and the engines report explains why something is not
ready; an engine that does not respond makes a detail Unknown and never anything False.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.canary import ABORTED
from blade_operator.model.controllers import CONTROLLERS
from blade_operator.model.objects import Object
from blade_operator.model.pods import CHECK, FETCH
from blade_operator.spec.quantity import format_bytes
from blade_operator.spec.rules.service import OWNED_FLAGS
from blade_operator.status.canary import aborted, canary_progress, not_promoted
from blade_operator.status.condition import Condition, Status
from blade_operator.status.deduplication import deduplicate
from blade_operator.status.download import describe
from blade_operator.status.failures.container_failures import report_line
from blade_operator.status.failures.failure import Failure
from blade_operator.status.failures.find import REJECTED, UNAUTHORIZED
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.machines import incomplete
from blade_operator.status.sleep import WAKING, is_asleep, was_asleep, why_none
from blade_operator.status.stages import stage
from blade_protocol.labels import RESTARTED_AT, ROLE_ENGINE, ROLE_ROUTER, SENDS_TOKEN

EXCEEDED = "ProgressDeadlineExceeded"
"""Reason: a new revision has made no progress for longer than `spec.rollout.progressDeadline`."""
_MEASURED = frozenset({"CheckFailed", "DoesNotFit", "Estimated"})
_PLAIN_ENDS = frozenset({"", "Completed", "Error"})
_OWNERS = {
    **{f"--{flag}": owner for flag, owner in OWNED_FLAGS.items() if owner.startswith("spec.")},
    "HF_TOKEN": "spec.model.tokenSecretRef",
    "MODELSCOPE_API_TOKEN": "spec.model.tokenSecretRef",
    "AWS_ACCESS_KEY_ID": "spec.model.credentialsSecretRef",
    "OSS_ACCESS_KEY_ID": "spec.model.credentialsSecretRef",
    "OCI_USERNAME": "spec.model.credentialsSecretRef",
    "HF_ENDPOINT": "spec.engine.env",
    "MODELSCOPE_ENDPOINT": "spec.engine.env",
    "AWS_ENDPOINT_URL_S3": "spec.engine.env",
    "OSS_ENDPOINT": "spec.engine.env",
    "HF_HOME": "spec.model.cache",
}
"""Fields that set the flags and variables which engine, check and download name in their messages."""
_ITEM_FIELDS = {
    "check_shm": "spec.engine.shmSize",
    "check_pb_env": "spec.engine.env",
    "check_memory_fit": "spec.engine.resources.limits.memory",
    "check_model": "spec.model.uri",
}
"""The field to change for an item of the check that names none itself."""


def conditions(
    inputs: StatusInputs,
    failures: Sequence[Failure],
    model: dict[str, Any] | None,
    fit: dict[str, Any] | None,
    now: datetime,
) -> list[Condition]:
    """All conditions, Ready first. ``model`` and ``fit`` are those of the status."""
    tree = [
        spec_valid(inputs),
        model_cached(inputs, failures, model),
        _deduplicated(preflight_passed(inputs), inputs),
        _deduplicated(model_fits(inputs, fit), inputs),
        workers_ready(inputs, failures, now),
        router_ready(inputs, failures),
    ]
    progress = progressing(inputs, failures)
    overall = ready(tree, inputs, failures)
    marks = [*token_refused(inputs), *aborted(inputs)]
    return [overall, *tree, progress, degraded(failures), *kstatus(progress), *marks]


def _deduplicated(condition: Condition, inputs: StatusInputs) -> Condition:
    """``condition`` with its last message where only measured numbers differ."""
    before = inputs.last_condition(condition.type)
    same = (before.get("status"), before.get("reason")) == (condition.status, condition.reason)
    revision = (inputs.last_status.get("revision") or {}).get("current")
    if not same or revision != inputs.current or condition.reason not in _MEASURED:
        return condition
    return dataclasses.replace(condition, message=deduplicate(before.get("message", ""), condition.message))


def spec_valid(inputs: StatusInputs) -> Condition:
    """Whether the spec can be run as written."""
    if inputs.invalid is None and (why := inputs.rollout.invalid_window):
        return Condition("SpecValid", "False", "InvalidWindow", f"{why}; until then no engine is replaced")
    if inputs.invalid is None:
        return Condition("SpecValid", "True", "Valid", "the spec is valid")
    return Condition("SpecValid", "False", "InvalidSpec", "; ".join(map(str, inputs.invalid.problems))[:1024])


def model_cached(inputs: StatusInputs, failures: Sequence[Failure], model: dict[str, Any] | None) -> Condition:
    """Whether the model is on the engines' volume."""
    if inputs.service is None:
        return _unknown("ModelCached", inputs)
    uri = inputs.service.spec.model.uri
    if not inputs.service.spec.model.downloaded:
        return Condition("ModelCached", "True", "NoDownload", f"{uri} is read where it is")
    fetches = [
        (pod, state) for pod in inputs.machines_of(inputs.current_pods) if (state := podutil.container(pod, FETCH))
    ]
    for pod, state in fetches:
        if state.termination is not None and state.termination.exit_code == 0:
            report = podutil.fetch_report(pod)
            size = f" ({format_bytes(report.bytes)}, {report.files} files)" if report and report.files else ""
            return Condition("ModelCached", "True", "Downloaded", f"{uri} is in the cache{size}")
    for pod, state in fetches:
        # A download that is retried has to make progress first: most fail in the same way again.
        retried = state.running and pod["metadata"]["name"] in inputs.downloads and bool(model)
        if not retried and (end := state.termination or state.last_termination) is not None:
            why = report_line(pod, FETCH)
            field = "spec.model.revision" if "has no revision" in why else "spec.model.uri"
            why = with_fields(why, field) if why else f"blade_llm_fetch ended with exit {end.exit_code}"
            return Condition("ModelCached", "False", "DownloadFailed", f"pod {pod['metadata']['name']}: {why}")
    if any(state.running for _, state in fetches):
        text = describe(model) if model else f"{uri} is being downloaded"
        return Condition("ModelCached", "False", "Downloading", text)
    blocked = next((failure for failure in failures if failure.failing and failure.container == FETCH), None)
    if blocked:
        return Condition("ModelCached", "False", blocked.reason, blocked.summary)
    return _unknown("ModelCached", inputs)


def preflight_passed(inputs: StatusInputs) -> Condition:
    """Whether ``blade_llm_check`` let the engines of the current revision start."""
    if inputs.service is None:
        return _unknown("PreflightPassed", inputs)
    if inputs.service.spec.check.mode == "Off":
        return Condition("PreflightPassed", "True", "CheckOff", "spec.check.mode is Off")
    checks = [
        (pod, state) for pod in inputs.machines_of(inputs.current_pods) if (state := podutil.container(pod, CHECK))
    ]
    for pod, state in checks:
        end = state.termination or state.last_termination
        if end is not None and end.exit_code != 0 and not (state.termination and state.termination.exit_code == 0):
            return Condition("PreflightPassed", "False", "CheckFailed", _why_failed(pod, end.exit_code))
    ended = [pod for pod, state in checks if state.termination is not None]
    if not ended:
        return _unknown("PreflightPassed", inputs, "Checking" if checks else "")
    warnings = sum(report.warnings for pod in ended if (report := podutil.check_report(pod)))
    if warnings:
        return Condition("PreflightPassed", "True", "PassedWithWarnings", f"{_items(warnings)} with a warning")
    return Condition("PreflightPassed", "True", "Passed", f"every item passed in {_pods(len(ended))}")


def model_fits(inputs: StatusInputs, fit: dict[str, Any] | None) -> Condition:
    """Whether model and KV cache fit into memory: as the engines measured, else as the check estimates."""
    if fit is not None:
        return Condition(
            "ModelFits",
            "True",
            "Measured",
            f"the KV cache holds {fit['kvTokens']} tokens: "
            f"{fit['concurrency']} requests of {fit['contextLength']} tokens at once",
        )
    estimates = []
    for pod in inputs.machines_of(inputs.current_pods):
        report = podutil.check_report(pod)
        items = {item.name: item for item in report.items} if report else {}
        memory, files = items.get("check_memory_fit"), items.get("check_model")
        if memory is None or (files and (files.status, files.detail) == ("FAILED", memory.detail)):
            continue  # the size of a model that cannot be read is unknown
        estimates.append(memory)
    if not estimates:
        return _unknown("ModelFits", inputs)
    # Each machine plans for its own ranks; one where they do not fit is enough.
    worst = next((memory for memory in estimates if memory.status == "FAILED"), estimates[0])
    if worst.status == "FAILED":
        message = with_fields(worst.detail, _ITEM_FIELDS[worst.name])
        return Condition("ModelFits", "False", "DoesNotFit", message)
    return Condition("ModelFits", "True", "Estimated", worst.detail)


def workers_ready(inputs: StatusInputs, failures: Sequence[Failure], now: datetime) -> Condition:
    """Whether the engines are ready: True once every desired one is, and from then on while at least one is."""
    wanted, ready_pods = inputs.replicas, inputs.ready_engines
    if wanted == 0 and inputs.invalid is not None:
        return Condition("WorkersReady", "False", "InvalidSpec", "no engine is there")
    if wanted == 0:
        return Condition("WorkersReady", "False", *why_none(inputs))
    count = f"{min(ready_pods, wanted)} of {wanted} engines ready"
    if ready_pods >= wanted:
        return Condition("WorkersReady", "True", "AllReady", count)
    waking = was_asleep(inputs)
    if ready_pods and (waking or inputs.last_condition("WorkersReady").get("status") == "True"):
        return Condition("WorkersReady", "True", "SomeReady", count)
    failing = next((failure for failure in failures if failure.failing and failure.role == ROLE_ENGINE), None)
    if failing:
        return Condition("WorkersReady", "False", _reason(failing, "EngineFailing"), f"{count}; {failing.summary}")
    starting = (pod for pod in inputs.current_pods if not podutil.is_ready(pod))
    doing = incomplete(inputs, now) or next((found for pod in starting if (found := stage(pod, now))), "")
    reason = WAKING if waking else "EnginesStarting"
    return Condition("WorkersReady", "False", reason, f"{count}; {doing}" if doing else count)


def router_ready(inputs: StatusInputs, failures: Sequence[Failure]) -> Condition:
    """Whether a router is ready, so that something listens at the URL."""
    ready_pods = sum(map(podutil.is_ready, inputs.router_pods))
    wanted = inputs.routers if inputs.service else max(1, ready_pods)
    count = f"{ready_pods} of {wanted} routers ready"
    if ready_pods:
        return Condition("RouterReady", "True", "AllReady" if ready_pods >= wanted else "SomeReady", count)
    failing = next((failure for failure in failures if failure.failing and failure.role == ROLE_ROUTER), None)
    if failing:
        return Condition("RouterReady", "False", _reason(failing, "RouterFailing"), f"{count}; {failing.summary}")
    return Condition("RouterReady", "False", "RouterStarting", count)


def ready(tree: Sequence[Condition], inputs: StatusInputs, failures: Sequence[Failure]) -> Condition:
    """Whether requests are served as the spec says; the reason is that of the first condition that explains it."""
    by_type = {condition.type: condition for condition in tree}
    needed = ("SpecValid", "WorkersReady", "RouterReady")
    if all(by_type[kind].status == "True" for kind in needed):
        if inputs.rollout.gave_up:
            return Condition("Ready", "False", EXCEEDED, _gave_up(inputs, failures))
        if failed := _failed_rollout(inputs, failures):
            return Condition("Ready", "False", _reason(failed, "RolloutFailed"), _not_rolled_out(inputs, failed))
        if found := aborted(inputs):
            return Condition("Ready", "False", ABORTED, not_promoted(inputs, found[0].message))
        return Condition("Ready", "True", "Ready", by_type["WorkersReady"].message)
    workers = by_type["WorkersReady"]
    if is_asleep(workers.reason) and by_type["RouterReady"].status == "True" and not inputs.rejected:
        return Condition("Ready", "True", workers.reason, workers.message)
    if by_type["SpecValid"].status == "True" and inputs.replicas == 0 and not inputs.sleeps:
        return Condition("Ready", "False", *why_none(inputs))
    rejected = next((failure for failure in failures if failure.reason == REJECTED), None)
    if rejected and by_type["SpecValid"].status == "True":
        return Condition("Ready", "False", REJECTED, rejected.summary)
    why = next(
        condition
        for condition in tree
        if not is_asleep(condition.reason)
        and (condition.status == "False" or (condition.type in needed and condition.status != "True"))
    )
    return Condition("Ready", "False", why.reason, why.message)


def progressing(inputs: StatusInputs, failures: Sequence[Failure]) -> Condition:
    """Whether pods are still being brought to the desired state."""
    if inputs.invalid is not None:
        return Condition("Progressing", "False", "InvalidSpec", "nothing changes until the spec is valid")
    if inputs.rollout.gave_up:
        return Condition("Progressing", "False", EXCEEDED, _gave_up(inputs, failures))
    if inputs.rollout.held:
        return Condition("Progressing", "Unknown", inputs.rollout.held, _held(inputs))
    wanted = inputs.replicas
    current = len(inputs.current_pods)
    current_ready = sum(map(podutil.is_ready, inputs.current_pods))
    old = len(inputs.engine_pods) - current
    routers = inputs.routers
    routers_ready = sum(map(podutil.is_ready, inputs.router_pods))
    older_routers = len(inputs.older_routers)
    missed = {
        "": True,
        ROLE_ENGINE: bool(old) or current_ready < wanted,
        ROLE_ROUTER: bool(older_routers) or routers_ready < routers,
    }
    if stuck := next((failure for failure in failures if failure.stuck and missed.get(failure.role)), None):
        return Condition("Progressing", "False", "Stalled", stuck.summary)
    if inputs.waits_for_routers and wanted:
        message = (
            f"engines of revision {inputs.current} require the internal token, and wait until every router sends it: "
            f"{_routers_of_before(inputs)}; earlier engines are kept and scaled meanwhile"
        )
        return Condition("Progressing", "True", "WaitingForRouters", message)
    if progress := canary_progress(inputs):
        return progress
    if old or (inputs.old_deployments and current_ready < wanted):
        message = f"{current} of {inputs.all_replicas} engines run revision {inputs.current}, {old} an earlier one"
        return Condition("Progressing", "True", "Updating", message)
    if current_ready < wanted:
        # Without room for a surge (spec.rollout.maxSurge), new pods wait for the terminating ones.
        first = f", {_pods(len(inputs.terminating_pods))} leaving" if inputs.terminating_pods else ""
        return Condition("Progressing", "True", "Starting", f"{current_ready} of {wanted} engines ready{first}")
    if older_routers:
        message = f"{len(inputs.router_pods) - older_routers} of {routers} routers are new, {older_routers} of before"
        return Condition("Progressing", "True", "Updating", message)
    if routers_ready < routers:
        return Condition("Progressing", "True", "Starting", f"{routers_ready} of {routers} routers ready")
    if inputs.standing_by < inputs.standby:
        message = f"{inputs.standing_by} of {inputs.standby} engines on standby"
        return Condition("Progressing", "True", "Starting", message)
    if (surplus := max(current - inputs.all_replicas, 0)) or inputs.terminating_pods:
        message = f"{_pods(surplus + len(inputs.terminating_pods))} leaving"
        return Condition("Progressing", "True", "Draining", message)
    return Condition("Progressing", "False", "Complete", f"revision {inputs.current} runs everywhere")


def _held(inputs: StatusInputs) -> str:
    change = f"{len(inputs.updated_pods)} of {inputs.all_replicas} engines run revision {inputs.current}"
    if inputs.rollout.held == "Paused":
        return f"{change}, and no other is replaced while spec.rollout.paused is true"
    opening = inputs.rollout.held_message
    return f"{change}, and no other is replaced outside spec.rollout.window{f': {opening}' if opening else ''}"


def _gave_up(inputs: StatusInputs, failures: Sequence[Failure]) -> str:
    """Why the change was given up, and what follows. Its engines are gone later on, so the words are kept."""
    last, revision = inputs.last_condition("Progressing"), inputs.last_status.get("revision") or {}
    same = (revision.get("current"), revision.get("failed", "")) == (inputs.current, inputs.rollout.failed)
    if same and last.get("reason") == EXCEEDED:
        return str(last.get("message", ""))
    failed = {pod["metadata"]["name"] for pod in inputs.updated_pods}
    why = next((each.summary for each in failures if each.failing and each.pod in {"", *failed}), "")
    text = f"revision {inputs.current} made no progress within spec.rollout.progressDeadline{f'; {why}' if why else ''}"
    if not inputs.rollout.failed:
        return text
    return f"{text}; revision {inputs.rollout.stable} runs instead, until the spec or {RESTARTED_AT} changes"


def _routers_of_before(inputs: StatusInputs) -> str:
    without = [pod for pod in inputs.router_pods if SENDS_TOKEN not in pod["metadata"]["labels"]]
    return f"{len(without)} of {len(inputs.router_pods)} routers are of before"


def _failed_rollout(inputs: StatusInputs, failures: Sequence[Failure]) -> Failure | None:
    """What keeps the spec from being rolled out, although earlier pods serve; None while nothing does."""
    refused = any(ref.kind in CONTROLLERS for ref in inputs.rejected)
    missed = {"": refused, ROLE_ENGINE: bool(inputs.older_pods), ROLE_ROUTER: bool(inputs.older_routers)}
    return next((failure for failure in failures if failure.stuck and missed.get(failure.role)), None)


def _not_rolled_out(inputs: StatusInputs, failed: Failure) -> str:
    if inputs.older_pods:
        return f"revision {inputs.current} does not become ready, an earlier one serves; {failed.summary}"
    return f"the spec is not in effect, what ran before serves; {failed.summary}"


def kstatus(progress: Condition) -> list[Condition]:
    """``Reconciling`` and ``Stalled``, by which kstatus tells progress from failure (Flux, Argo CD, ``kpt``)."""
    stalled = progress.reason in ("Stalled", "InvalidSpec", EXCEEDED, ABORTED)
    reconciling: Status = "False" if progress.status == "False" else "True"  # also while a change waits
    return [
        Condition("Reconciling", reconciling, progress.reason, progress.message if reconciling == "True" else ""),
        Condition(
            "Stalled",
            "True" if stalled else "False",
            progress.reason if stalled else "AsExpected",
            progress.message if stalled else "",
        ),
    ]


def degraded(failures: Sequence[Failure]) -> Condition:
    """Whether anything fails now."""
    failing = [failure for failure in failures if failure.failing]
    if not failing:
        return Condition("Degraded", "False", "AsExpected", "nothing fails")
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    return Condition("Degraded", "True", failing[0].reason or "ContainerFailed", f"{failing[0].summary}{more}")


def token_refused(inputs: StatusInputs) -> list[Condition]:
    """``InternalTokenRefused``, only while it is True: its transition time says since when routers may be waiting."""
    message = "engines do not accept the operator's internal token"
    return [Condition(UNAUTHORIZED, "True", "AnotherRootKey", message)] if inputs.refusing_pods else []


def _unknown(kind: str, inputs: StatusInputs, reason: str = "") -> Condition:
    if reason == "Checking":
        return Condition(kind, "Unknown", reason, "the check has not ended yet")
    if not inputs.current_pods:
        return Condition(kind, "Unknown", "NoPods", "no engine pod has started")
    return Condition(kind, "Unknown", "NotReported", "no engine has reported yet")


def _reason(failure: Failure, default: str) -> str:
    """The reason of ``failure`` where that is specific, else ``default``."""
    return default if failure.reason in _PLAIN_ENDS else failure.reason


def _why_failed(pod: Object, exit_code: int) -> str:
    why = report_line(pod, CHECK) or f"blade_llm_check ended with exit {exit_code}"
    return f"pod {pod['metadata']['name']}: {with_fields(why, _ITEM_FIELDS.get(why.partition(' ')[0], ''))}"


def with_fields(text: str, field: str = "") -> str:
    """``text`` followed by the fields that set the flags and variables it names, or by ``field`` if it names none."""
    owners = {
        word: _OWNERS[word]
        for word in re.findall(r"--\w+(?:\.\w+)*|\b(?:HF|MODELSCOPE|AWS|OSS|OCI)_\w+", text)
        if word in _OWNERS
    }
    note = ", ".join(f"{word} is {owner}" for word, owner in owners.items()) or field
    return f"{text} ({note})" if note else text


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"
