"""``check``: runs ``blade_llm_check`` alone, as a Job on a node of the cluster, and prints its table.

On the local runtime it runs as a process of this machine, which is the node.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any, Final

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.environment import find_program
from blade_operator.cluster.local.errors import ContainerConfigError
from blade_operator.kubectl.jobs import installed, job_name, run_job
from blade_operator.kubectl.output import print_data
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import namespace_of, the_service
from blade_operator.model.objects import Object
from blade_operator.render.jobs.tool import Tool, tool_job

PROGRAM: Final = "blade_llm_check"
_POD_FIELDS: Final = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName")


def run(options: argparse.Namespace) -> int:
    """Run the check; returns its exit code, 0 when all items pass."""
    with open_place(options) as place:
        if place.local and not options.output:
            return run_here(PROGRAM, options.words, options.timeout)
        job = make_job(place, options)
        if options.output:
            print_data(job, options.output)
            return 0
        return run_job(place, job, options.timeout)


def make_job(place: Place, options: argparse.Namespace) -> Object:
    """The Job that the options describe. With a service: with its image, GPUs and shared memory, where its engines
    may run."""
    namespace = namespace_of(options, place)
    engine, fields = dict[str, Any](), dict[str, Any]()
    if options.object:
        engine = the_service(place, namespace, options.object)["spec"].get("engine") or {}
        overlay = (engine.get("podTemplate") or {}).get("spec") or {}
        fields = {name: overlay[name] for name in _POD_FIELDS if overlay.get(name)}
    if options.node:
        fields["tolerations"] = [{"operator": "Exists"}]  # who names a node means it, cordoned or tainted
    gpus = engine.get("gpus") or {}
    count = gpus.get("count", 0) // max(1, gpus.get("nodes", 1)) if options.gpus is None else options.gpus
    tool = Tool(
        name=job_name("llm-check"),
        namespace=namespace,
        component="check",
        command=(PROGRAM, *options.words),
        seconds=options.timeout,
        image=options.image or engine.get("image") or "",
        node=options.node or "",
        gpus=count,
        gpu_resource=options.gpu_resource or gpus.get("resource") or "nvidia.com/gpu",
        shm_size=str(engine.get("shmSize") or ""),
        pod_fields=fields,
    )
    return tool_job(tool, installed(place, options.operator_namespace))


def run_here(program: str, words: list[str], timeout: float) -> int:
    """The exit code of a program of this machine, whose output goes where ours does.

    Raises:
        CommandError: it is not installed, or took too long.
    """
    try:
        found = find_program(program)
    except ContainerConfigError as error:
        raise CommandError(str(error)) from error
    sys.stdout.flush()
    try:
        return subprocess.run([found, *words], timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired:
        raise CommandError(f"{program} did not end within {timeout:g} s; see --timeout") from None
