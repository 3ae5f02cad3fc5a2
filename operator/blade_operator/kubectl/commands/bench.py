"""``bench``: puts load on a service with ``blade_llm_benchmark``: installed here, else as a Job in the cluster."""

from __future__ import annotations

import argparse
from typing import Final

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.environment import find_program
from blade_operator.cluster.local.errors import ContainerConfigError
from blade_operator.kubectl.commands.check import run_here
from blade_operator.kubectl.jobs import installed, job_name, run_job
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import namespace_of, ready_router, the_service
from blade_operator.model.objects import Object
from blade_operator.render.jobs.tool import Tool, tool_job

PROGRAM: Final = "blade_llm_benchmark"
DEFAULTS: Final = {"concurrency": "8", "num_requests": "64", "input_len": "256", "output_len": "64"}
"""Its flags where the user gives none: a minute or so on one GPU."""
_REPLACES: Final = {
    "concurrency": ("concurrency", "request_rate", "find_rate"),
    "num_requests": ("num_requests", "duration", "find_rate"),
    "input_len": ("input_len", "dataset", "prompts"),
    "output_len": ("output_len", "dataset"),
}
"""Flags beside which a default makes no sense."""


def run(options: argparse.Namespace) -> int:
    """Run the benchmark; returns its exit code."""
    with open_place(options) as place:
        service = the_service(place, namespace_of(options, place), options.object)
        flags = flags_of(options.words)
        if options.in_cluster or not (place.local or _is_installed()):
            if place.local:
                raise CommandError("--in_cluster is for Kubernetes: the local runtime is this machine")
            return run_job(place, make_job(place, service, flags, options), options.timeout)
        pod = ready_router(place, service)
        tls = bool(service["spec"].get("router", {}).get("tls"))
        if tls and not place.local:
            raise CommandError("the router has a certificate for another name than a port-forward's: use --in_cluster")
        with place.reach(pod, "http") as reached:
            url = service["status"]["url"] if tls else f"http://{reached.authority}"
            code = run_here(PROGRAM, ["--base_url", url, *flags], options.timeout)
            if code and reached.problem:
                raise CommandError(reached.problem)
            return code


def flags_of(words: list[str]) -> list[str]:
    """``words`` and the defaults that they leave open."""
    given = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    defaults = [(name, value) for name, value in DEFAULTS.items() if not given.intersection(_REPLACES[name])]
    return [*(word for name, value in defaults for word in (f"--{name}", value)), *words]


def make_job(place: Place, service: Object, flags: list[str], options: argparse.Namespace) -> Object:
    """The Job that runs it in the service's namespace."""
    spec, metadata = service["spec"], service["metadata"]
    engine = spec.get("engine") or {}
    if spec.get("router", {}).get("auth"):
        raise CommandError(
            f"{metadata['name']} requires an API key, which a Job would show to everybody who may read it: install "
            f"bladellm[engine] here, and set OPENAI_API_KEY, to run {PROGRAM} through a port-forward"
        )
    url = str(service.get("status", {}).get("url", ""))
    if not url:
        raise CommandError(f"{metadata['name']} has no URL yet; `status {metadata['name']}` says why")
    overlay = (engine.get("podTemplate") or {}).get("spec") or {}
    tool = Tool(
        name=job_name("llm-bench"),
        namespace=metadata["namespace"],
        component="benchmark",
        command=(PROGRAM, "--base_url", url, *flags),
        seconds=options.timeout,
        image=options.image or engine.get("image") or "",
        pod_fields={name: overlay[name] for name in ("imagePullSecrets",) if overlay.get(name)},
    )
    return tool_job(tool, installed(place, options.operator_namespace))


def _is_installed() -> bool:
    try:
        find_program(PROGRAM)
    except ContainerConfigError:
        return False
    return True
