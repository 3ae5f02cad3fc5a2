"""``command``: the exact command lines of pods, quoted for a shell, with their environment but no secret value."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.environment import expand
from blade_operator.command_line import one_line, safe
from blade_operator.kubectl.output import print_data
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.pods import ENGINE_ROLES, bare, namespace_of, pods_of, the_service
from blade_operator.kubectl.redact import is_secret_variable, redact_words
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.redact_text import REDACTED, redact_text
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER


def run(options: argparse.Namespace) -> int:
    """Print the command lines; those that several pods share once."""
    with open_place(options) as place:
        namespace = namespace_of(options, place)
        if options.pod:
            pods = [place.get("Pod", namespace, bare(options.pod))]
        else:
            roles = {"engine": ENGINE_ROLES, "router": (ROLE_ROUTER,), None: (*ENGINE_ROLES, ROLE_ROUTER)}[options.role]
            service = the_service(place, namespace, options.object)
            pods = pods_of(place, service, *roles)
            pods.sort(key=lambda pod: podutil.role(pod) != ROLE_ENGINE)
        if not pods:
            raise CommandError("there are no such pods yet; `status` says why")
    found = commands(pods)
    if options.output:
        print_data({"commands": found}, options.output)
        return 0
    for number, each in enumerate(found):
        if number:
            print()
        more = f" and {len(each['pods']) - 1} more" if len(each["pods"]) > 1 else ""
        print(f"# pod {one_line(each['pods'][0])}{more}, container {one_line(each['container'])}")
        print("\n".join(shell_lines(each, folded=sys.stdout.isatty())))
    return 0


def commands(pods: list[Object]) -> list[dict[str, Any]]:
    """What each container of ``pods`` runs; the same of several pods is one entry."""
    found: list[dict[str, Any]] = []
    for pod in pods:
        for field, init in (("initContainers", True), ("containers", False)):
            for container in pod["spec"].get(field) or ():
                made = {"container": container["name"], "init": init, **_command(container)}
                same = next((each for each in found if {**each, "pods": ()} == {**made, "pods": ()}), None)
                if same is None:
                    found.append(made | {"pods": [pod["metadata"]["name"]]})
                else:
                    same["pods"].append(pod["metadata"]["name"])
    return found


def _command(container: Object) -> dict[str, Any]:
    plain, env = dict[str, str](), list[dict[str, str]]()
    for entry in container.get("env") or ():
        name = entry["name"]
        if "valueFrom" in entry:
            value = _source(entry["valueFrom"])
        elif is_secret_variable(name):
            value = REDACTED
        else:
            value = plain[name] = expand(entry.get("value", ""), plain)
            value = redact_text(value)
        env.append({"name": name, "value": value})
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return {
        "image": container.get("image", ""),
        "env": env,
        "command": redact_words([expand(word, plain) for word in words]),
    }


def _source(source: Object) -> str:
    """Where a value comes from: ``<secret NAME/KEY>``."""
    for field, word in (("secretKeyRef", "secret"), ("configMapKeyRef", "configmap")):
        if field in source:
            return f"<{word} {source[field].get('name', '')}/{source[field].get('key', '')}>"
    if "fieldRef" in source:
        return f"<field {source['fieldRef'].get('fieldPath', '')}>"
    return f"<{next(iter(source), 'unknown')}>"


def shell_lines(command: dict[str, Any], *, folded: bool) -> list[str]:
    """The command for a shell: variables, then the program. ``folded``: each flag on a line of its own."""
    variables = [f"{each['name']}={shlex.quote(each['value'])}" for each in command["env"]]
    words = [shlex.quote(word) for word in command["command"]] or ["# the image's own entry point"]
    if not folded:
        return [safe(" ".join([*variables, *words]))]
    groups = [[words[0]]]
    for word in words[1:]:
        if word.startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    rows = [*variables, *(" ".join(group) for group in groups)]
    return [safe(("" if number == 0 else "  ") + row + (" \\" if row is not rows[-1] else ""))
            for number, row in enumerate(rows)]  # fmt: skip
