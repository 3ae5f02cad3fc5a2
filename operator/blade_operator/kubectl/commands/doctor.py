"""``doctor``: says what is wrong with services and what to do, and packs up what shows it, without secrets."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from rich.text import Text

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.diagnosis.bundle import Bundle, add_events, add_logs, add_metrics, add_objects, add_versions
from blade_operator.kubectl.diagnosis.findings import Finding, find, now
from blade_operator.kubectl.output import STYLES, console, print_data, styled, warn
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import namespace_of, the_service
from blade_operator.model.objects import Object
from blade_operator.redact_text import redact_text
from blade_protocol.labels import ADAPTER_KIND, KIND, NAME, OPERATOR

_OWNED: Final = (
    *("Deployment", "StatefulSet", "ControllerRevision", "Service", "ConfigMap", "Secret", "ServiceAccount"),
    *("PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy", "Role", "RoleBinding"),
)


def run(options: argparse.Namespace) -> int:
    """Print the findings and write the bundle; 1 when there are errors among them."""
    folder = Path(options.output_dir).expanduser()
    if options.bundle and not folder.is_dir():
        raise CommandError(f"--output_dir {folder}: there is no such folder")
    with open_place(options) as place:
        namespace = namespace_of(options, place)
        services = [the_service(place, namespace, options.object)] if options.object else place.list(KIND, namespace)
        names = {service["metadata"]["name"] for service in services}
        labelled = [pod for pod in place.list("Pod", namespace) if NAME in (pod["metadata"].get("labels") or {})]
        pods = [pod for pod in labelled if pod["metadata"]["labels"][NAME] in names]
        events = list(_events(place, namespace, services, pods))
        findings = _redacted(find(services, pods, events, now()))
        bundle = _write(place, namespace, options, services, pods, events, findings) if options.bundle else None
    if options.output:
        written = {"bundle": str(bundle.path)} if bundle else {}
        print_data({"findings": [asdict(each) for each in findings], **written}, options.output)
    else:
        _show(findings, services, namespace)
    if bundle is not None:
        warn(f"{bundle.path}: {bundle.path.stat().st_size // 1024 + 1} KiB; look into it before you pass it on")
        if bundle.missing:
            warn(f"  {len(bundle.missing)} things could not be had; missing.txt in it says which and why")
    return 1 if any(each.level == "error" for each in findings) else 0


def _redacted(findings: list[Finding]) -> list[Finding]:
    return [Finding(each.level, each.about, redact_text(each.problem), each.advice) for each in findings]


def _events(place: Place, namespace: str, services: list[Object], pods: list[Object]) -> Iterator[Object]:
    """Events of the services and what belongs to them."""
    names = [obj["metadata"]["name"] for obj in (*services, *pods)]
    for event in place.list("Event", namespace):
        about = str((event.get("involvedObject") or {}).get("name", ""))
        if any(about == name or about.startswith(f"{name}-") for name in names):
            yield event


def _write(
    place: Place,
    namespace: str,
    options: argparse.Namespace,
    services: list[Object],
    pods: list[Object],
    events: list[Object],
    findings: list[Finding],
) -> Bundle:
    name = f"llm-doctor-{namespace}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    try:
        bundle = Bundle(Path(options.output_dir).expanduser() / name)
    except OSError as error:
        raise CommandError(f"{name} cannot be written: {error.strerror}") from error
    try:
        bundle.add("findings.json", json.dumps([asdict(each) for each in findings], indent=2) + "\n")
        add_versions(bundle, place, pods)
        add_objects(bundle, [*services, *pods])
        for service in services:
            labels = {NAME: service["metadata"]["name"]}
            for kind in _OWNED:
                owned = bundle.attempt(kind, partial(place.list, kind, namespace, labels))
                add_objects(bundle, owned or ())
        add_objects(bundle, bundle.attempt(ADAPTER_KIND, lambda: place.list(ADAPTER_KIND, namespace)) or ())
        add_events(bundle, events)
        add_logs(bundle, place, pods)
        add_metrics(bundle, place, pods)
        if not place.local:
            _add_operator(bundle, place, options.operator_namespace)
    finally:
        bundle.close()
    return bundle


def _add_operator(bundle: Bundle, place: Place, namespace: str) -> None:
    """The operator's own pods and their logs, where one may look there."""
    labels = {"app.kubernetes.io/name": OPERATOR}
    pods = bundle.attempt("operator", lambda: place.list("Pod", namespace, labels)) or []
    if not pods:
        bundle.missing.append(f"operator: no pods in namespace {namespace}; --operator_namespace names another one")
    add_objects(bundle, pods)
    add_logs(bundle, place, pods)


def _show(findings: list[Finding], services: list[Object], namespace: str) -> None:
    screen = console()
    if not services:
        screen.print(styled(f"There are no LLMServices in namespace {namespace}; -n names another one."))
    elif not findings:
        names = ", ".join(service["metadata"]["name"] for service in services)
        screen.print(styled(f"✓ nothing is wrong with {names}", STYLES["ok"]))
    for each in findings:
        mark, style = ("✗", STYLES["bad"]) if each.level == "error" else ("!", STYLES["warn"])
        screen.print(Text.assemble((f"{mark} ", style), styled(each.about, "bold"), ": ", styled(each.problem)))
        screen.print(Text.assemble("  ", styled(f"→ {each.advice}", STYLES["dim"])))
