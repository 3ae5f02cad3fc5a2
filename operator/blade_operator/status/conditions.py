"""The conditions of an LLMService: Ready and what it hangs on, Progressing, Degraded.

Ready follows the pods alone. What the check, the download and the engines tell explains why something is not ready; an
engine that cannot be asked makes a detail Unknown and never anything False.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.pods import CHECK, FETCH
from blade_operator.spec.quantity import format_bytes
from blade_operator.spec.rules import OWNED_FLAGS
from blade_operator.status.container_failures import report_line
from blade_operator.status.download import describe
from blade_operator.status.failure import Failure
from blade_operator.status.failures import REJECTED
from blade_operator.status.situation import Situation
from blade_operator.status.stages import stage
from blade_operator.status.steady import steady
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

Status = Literal["True", "False", "Unknown"]
_MEASURED = frozenset({"CheckFailed", "DoesNotFit", "Estimated"})
_PLAIN_ENDS = frozenset({"", "Completed", "Error"})
_OWNERS = {
    **{f"--{flag}": owner for flag, owner in OWNED_FLAGS.items() if owner.startswith("spec.")},
    "HF_TOKEN": "spec.model.tokenSecretRef",
    "HF_ENDPOINT": "spec.engine.env",
    "HF_HOME": "spec.model.cache",
}
"""Fields that stand for the flags and variables which engine, check and download speak of."""
_ITEM_FIELDS = {
    "check_shm": "spec.engine.shmSize",
    "check_pb_env": "spec.engine.env",
    "check_memory_fit": "spec.engine.resources.limits.memory",
    "check_model": "spec.model.uri",
}
"""What to change for an item of the check that names nothing itself."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition before it gets its time."""

    type: str
    status: Status
    reason: str
    message: str = ""


def conditions(
    situation: Situation,
    failures: Sequence[Failure],
    model: dict[str, Any] | None,
    fit: dict[str, Any] | None,
    now: datetime,
) -> list[Condition]:
    """All of them, Ready first. ``model`` and ``fit`` are those of the status."""
    tree = [
        spec_valid(situation),
        model_cached(situation, failures, model),
        _as_written(preflight_passed(situation), situation),
        _as_written(model_fits(situation, fit), situation),
        workers_ready(situation, failures, now),
        router_ready(situation, failures),
    ]
    return [ready(tree, situation, failures), *tree, progressing(situation, failures), degraded(failures)]


def _as_written(condition: Condition, situation: Situation) -> Condition:
    """With the message of before where only what was measured anew differs."""
    before = situation.condition(condition.type)
    same = (before.get("status"), before.get("reason")) == (condition.status, condition.reason)
    revision = (situation.before.get("revision") or {}).get("current")
    if not same or revision != situation.current or condition.reason not in _MEASURED:
        return condition
    return dataclasses.replace(condition, message=steady(before.get("message", ""), condition.message))


def spec_valid(situation: Situation) -> Condition:
    """Whether the spec can be run as written."""
    if situation.invalid is None:
        return Condition("SpecValid", "True", "Valid", "the spec is valid")
    return Condition("SpecValid", "False", "InvalidSpec", "; ".join(map(str, situation.invalid.problems))[:1024])


def model_cached(situation: Situation, failures: Sequence[Failure], model: dict[str, Any] | None) -> Condition:
    """Whether the model is on the engines' volume."""
    uri = situation.service.spec.model.uri if situation.service else ""
    if not uri:
        return _unknown("ModelCached", situation)
    if not uri.startswith("hf://"):
        return Condition("ModelCached", "True", "NoDownload", f"{uri} is read where it is")
    fetches = [(pod, state) for pod in situation.current_pods if (state := read.container(pod, FETCH))]
    for pod, state in fetches:
        if state.end is not None and state.end.exit_code == 0:
            report = read.fetch_report(pod)
            size = f" ({format_bytes(report.bytes)}, {report.files} files)" if report and report.files else ""
            return Condition("ModelCached", "True", "Downloaded", f"{uri} is in the cache{size}")
    for pod, state in fetches:
        # One that is tried again has to show something first: most fail in the same way once more.
        retried = state.running and pod["metadata"]["name"] in situation.downloads and bool(model)
        if not retried and (end := state.end or state.last_end) is not None:
            why = report_line(pod, FETCH)
            field = "spec.model.revision" if "has no revision" in why else "spec.model.uri"
            why = with_fields(why, field) if why else f"blade_llm_fetch ended with exit {end.exit_code}"
            return Condition("ModelCached", "False", "DownloadFailed", f"pod {pod['metadata']['name']}: {why}")
    if any(state.running for _, state in fetches):
        text = describe(model) if model else f"{uri} is being downloaded"
        return Condition("ModelCached", "False", "Downloading", text)
    blocked = next((failure for failure in failures if failure.broken and failure.container == FETCH), None)
    if blocked:
        return Condition("ModelCached", "False", blocked.reason, blocked.told)
    return _unknown("ModelCached", situation)


def preflight_passed(situation: Situation) -> Condition:
    """Whether ``blade_llm_check`` let the engines of the current revision start."""
    if situation.service is None:
        return _unknown("PreflightPassed", situation)
    if situation.service.spec.check.mode == "Off":
        return Condition("PreflightPassed", "True", "CheckOff", "spec.check.mode is Off")
    checks = [(pod, state) for pod in situation.current_pods if (state := read.container(pod, CHECK))]
    for pod, state in checks:
        end = state.end or state.last_end
        if end is not None and end.exit_code != 0 and not (state.end and state.end.exit_code == 0):
            return Condition("PreflightPassed", "False", "CheckFailed", _why_failed(pod, end.exit_code))
    ended = [pod for pod, state in checks if state.end is not None]
    if not ended:
        return _unknown("PreflightPassed", situation, "Checking" if checks else "")
    warnings = sum(report.warnings for pod in ended if (report := read.check_report(pod)))
    if warnings:
        return Condition("PreflightPassed", "True", "PassedWithWarnings", f"{_items(warnings)} with a warning")
    return Condition("PreflightPassed", "True", "Passed", f"every item passed in {_pods(len(ended))}")


def model_fits(situation: Situation, fit: dict[str, Any] | None) -> Condition:
    """Whether model and KV cache fit into memory: as measured by the engines, else as the check reckons."""
    if fit is not None:
        return Condition(
            "ModelFits",
            "True",
            "Measured",
            f"the KV cache holds {fit['kvTokens']} tokens: "
            f"{fit['concurrency']} requests of {fit['contextLength']} tokens at once",
        )
    for pod in situation.current_pods:
        report = read.check_report(pod)
        items = {item.name: item for item in report.items} if report else {}
        memory, files = items.get("check_memory_fit"), items.get("check_model")
        if memory is None or (files and (files.status, files.detail) == ("FAILED", memory.detail)):
            continue  # of a model that cannot be read nobody knows the size
        if memory.status == "FAILED":
            told = with_fields(memory.detail, _ITEM_FIELDS[memory.name])
            return Condition("ModelFits", "False", "DoesNotFit", told)
        return Condition("ModelFits", "True", "Estimated", memory.detail)
    return _unknown("ModelFits", situation)


def workers_ready(situation: Situation, failures: Sequence[Failure], now: datetime) -> Condition:
    """True once every engine asked for is ready, and from then on while at least one is."""
    wanted, there = situation.replicas, situation.ready_engines
    if wanted == 0 and situation.invalid is not None:
        return Condition("WorkersReady", "False", "InvalidSpec", "no engine is there")
    if wanted == 0:
        return Condition("WorkersReady", "False", "ScaledToZero", "spec.replicas is 0")
    count = f"{min(there, wanted)} of {wanted} engines ready"
    if there >= wanted:
        return Condition("WorkersReady", "True", "AllReady", count)
    if there and situation.condition("WorkersReady").get("status") == "True":
        return Condition("WorkersReady", "True", "SomeReady", count)
    broken = next((failure for failure in failures if failure.broken and failure.role == ROLE_ENGINE), None)
    if broken:
        return Condition("WorkersReady", "False", _word(broken, "EngineFailing"), f"{count}; {broken.told}")
    doing = next((told for pod in situation.current_pods if not read.is_ready(pod) and (told := stage(pod, now))), "")
    return Condition("WorkersReady", "False", "EnginesStarting", f"{count}; {doing}" if doing else count)


def router_ready(situation: Situation, failures: Sequence[Failure]) -> Condition:
    """Whether anything listens at the URL."""
    there = sum(map(read.is_ready, situation.router_pods))
    wanted = situation.service.spec.router.replicas if situation.service else max(1, there)
    count = f"{there} of {wanted} routers ready"
    if there:
        return Condition("RouterReady", "True", "AllReady" if there >= wanted else "SomeReady", count)
    broken = next((failure for failure in failures if failure.broken and failure.role == ROLE_ROUTER), None)
    if broken:
        return Condition("RouterReady", "False", _word(broken, "RouterFailing"), f"{count}; {broken.told}")
    return Condition("RouterReady", "False", "RouterStarting", count)


def ready(tree: Sequence[Condition], situation: Situation, failures: Sequence[Failure]) -> Condition:
    """Whether requests are answered as the spec says; the reason is that of the first cause that explains it."""
    by_type = {condition.type: condition for condition in tree}
    needed = ("SpecValid", "WorkersReady", "RouterReady")
    if all(by_type[kind].status == "True" for kind in needed):
        return Condition("Ready", "True", "Ready", by_type["WorkersReady"].message)
    if by_type["SpecValid"].status == "True" and situation.replicas == 0:
        return Condition("Ready", "False", "ScaledToZero", "spec.replicas is 0")
    refused = next((failure for failure in failures if failure.reason == REJECTED), None)
    if refused and by_type["SpecValid"].status == "True":
        return Condition("Ready", "False", REJECTED, refused.told)
    why = next(
        condition
        for condition in tree
        if condition.status == "False" or (condition.type in needed and condition.status != "True")
    )
    return Condition("Ready", "False", why.reason, why.message)


def progressing(situation: Situation, failures: Sequence[Failure]) -> Condition:
    """Whether pods are on their way to what the spec asks for."""
    if situation.invalid is not None:
        return Condition("Progressing", "False", "InvalidSpec", "nothing changes until the spec is valid")
    wanted = situation.replicas
    current = len(situation.current_pods)
    current_ready = sum(map(read.is_ready, situation.current_pods))
    old = len(situation.engine_pods) - current
    routers = situation.service.spec.router.replicas if situation.service else 0
    routers_ready = sum(map(read.is_ready, situation.router_pods))
    missed = {"": True, ROLE_ENGINE: bool(old) or current_ready < wanted, ROLE_ROUTER: routers_ready < routers}
    stuck = next((failure for failure in failures if failure.stuck and missed.get(failure.role)), None)
    if stuck:
        return Condition("Progressing", "False", "Stalled", stuck.told)
    if old or (situation.old_deployments and current_ready < wanted):
        message = f"{current} of {wanted} engines run revision {situation.current}, {old} an earlier one"
        return Condition("Progressing", "True", "Updating", message)
    if current_ready < wanted:
        # Where there is no room for more (spec.rollout.maxSurge), those that leave are waited for.
        first = f", {_pods(len(situation.leaving_pods))} leaving" if situation.leaving_pods else ""
        return Condition("Progressing", "True", "Starting", f"{current_ready} of {wanted} engines ready{first}")
    if routers_ready < routers:
        return Condition("Progressing", "True", "Starting", f"{routers_ready} of {routers} routers ready")
    if current > wanted or situation.leaving_pods:
        message = f"{_pods(max(current - wanted, 0) + len(situation.leaving_pods))} leaving"
        return Condition("Progressing", "True", "Draining", message)
    return Condition("Progressing", "False", "Complete", f"revision {situation.current} runs everywhere")


def degraded(failures: Sequence[Failure]) -> Condition:
    """Whether anything fails now."""
    broken = [failure for failure in failures if failure.broken]
    if not broken:
        return Condition("Degraded", "False", "AsExpected", "nothing fails")
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    return Condition("Degraded", "True", broken[0].reason or "ContainerFailed", f"{broken[0].told}{more}")


def _unknown(kind: str, situation: Situation, reason: str = "") -> Condition:
    if reason == "Checking":
        return Condition(kind, "Unknown", reason, "the check has not ended yet")
    if not situation.current_pods:
        return Condition(kind, "Unknown", "NoPods", "no engine pod has started")
    return Condition(kind, "Unknown", "NotReported", "no engine has reported yet")


def _word(failure: Failure, default: str) -> str:
    """Its reason where that tells something by itself."""
    return default if failure.reason in _PLAIN_ENDS else failure.reason


def _why_failed(pod: Object, exit_code: int) -> str:
    why = report_line(pod, CHECK) or f"blade_llm_check ended with exit {exit_code}"
    return f"pod {pod['metadata']['name']}: {with_fields(why, _ITEM_FIELDS.get(why.partition(' ')[0], ''))}"


def with_fields(text: str, field: str = "") -> str:
    """``text`` with a note on which fields stand for the flags and variables it names; ``field`` if it names none."""
    owners = {word: _OWNERS[word] for word in re.findall(r"--\w+|HF_\w+", text) if word in _OWNERS}
    note = ", ".join(f"{word} is {owner}" for word, owner in owners.items()) or field
    return f"{text} ({note})" if note else text


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"
