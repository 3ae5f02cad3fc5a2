"""``quantize``: makes the Job that quantises a model, to be printed or applied."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from blade_operator.cli import manifests
from blade_operator.cli.change import named
from blade_operator.cli.errors import CommandError
from blade_operator.cli.quantize.flags import CALIBRATION, words_of
from blade_operator.cluster.local.commands import send
from blade_operator.cluster.local.layout import Layout
from blade_operator.model.objects import Object
from blade_operator.program import program
from blade_operator.render import Defaults
from blade_operator.render.jobs import Quantization, claim_folder, progress_access, quantize_job
from blade_operator.spec import SpecError, parse_service
from blade_protocol.labels import API_VERSION, KIND

_OPTIONS: Final = {
    "metadata.name": "NAME",
    "spec.model.uri": "--model",
    "spec.model.revision": "--revision",
    "spec.model.cache": "--cache_claim",
    "spec.model.tokenSecretRef": "--token_secret",
    "spec.model.credentialsSecretRef": "--credentials_secret",
    "spec.engine.image": "--image",
    "spec.engine.env": "--env",
    "spec.engine.resources.requests.cpu": "--cpu",
    "spec.engine.resources": "--memory",
}
"""The option that sets a field; fields below it are its as well. The first that fits counts."""


def run(options: argparse.Namespace) -> int:
    """Print the Job, or create it with ``--apply``."""
    if options.kubeconfig and not options.apply:
        raise CommandError("--kubeconfig goes with --apply; without it the Job is printed")
    if options.report_progress and options.apply and not options.kubeconfig:
        raise CommandError("--report_progress is for Kubernetes: the local runtime shows progress by itself")
    wanted = make_wanted(options)
    job = quantize_job(wanted, Defaults(openshift=options.openshift))
    access = progress_access(wanted) if options.report_progress else []
    if not options.apply:
        print(_dumped([*access, job], options.output), end="")
        return 0
    if options.kubeconfig:
        from blade_operator.cli.cluster_client import ClusterClient  # the client of Kubernetes takes long to import

        client = ClusterClient(options.kubeconfig)
        for each in access:
            client.create(each)
        client.create_job(job)
        done, logs = "created", f"kubectl logs -n {options.namespace} -f job/{options.job}"
    else:
        manifests.admit(job)
        done = send(Layout.of(options.name), "apply", obj=job)
        logs = f"{program()} logs job/{options.job} -f"
    print(f"{named(job)} {done}")
    print(f"Progress: {logs}; then serve {options.output_dir}")
    return 0


def _dumped(objects: list[Object], output: str) -> str:
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        return json.dumps(objects[0] if len(objects) == 1 else listed, indent=4)
    return "---\n".join(map(manifests.dump, objects))


def make_wanted(options: argparse.Namespace) -> Quantization:
    """What the options describe.

    Raises:
        CommandError: they do not; it names each option that is wrong.
    """
    output = claim_folder(options.output_dir)
    if output is None:
        raise CommandError(
            f"--output_dir {options.output_dir}: must be pvc://CLAIM/FOLDER, a new or empty folder of a claim"
        )
    file = getattr(options, CALIBRATION, None)
    calibration = None if file is None else claim_folder(file)
    if file is not None and calibration is None and not file.startswith("/"):
        raise CommandError(f"--{CALIBRATION} {file}: must be pvc://CLAIM/FILE, or an absolute path in the pod")
    try:
        words = words_of(options)
        source = parse_service(_source(options))
    except SpecError as error:
        raise CommandError("; ".join(f"{_option(each.path)}: {each.message}" for each in error.problems)) from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    elsewhere = (f"--{CALIBRATION}", file) if file is not None and calibration is None else ()
    return Quantization(
        source, output, calibration, (*elsewhere, *words), options.backoff_limit, options.report_progress
    )


def _source(options: argparse.Namespace) -> Object:
    """The model as a service would have it."""
    uri = options.model if "://" in options.model else manifests.for_model(options.model, 1)["spec"]["model"]["uri"]
    model: dict[str, Any] = {"uri": uri}
    if options.revision is not None:
        model["revision"] = options.revision
    if options.cache_claim is not None:
        model["cache"] = {"claimName": options.cache_claim}
    if options.token_secret is not None:
        model["tokenSecretRef"] = {"name": options.token_secret}
    if options.credentials_secret is not None:
        model["credentialsSecretRef"] = {"name": options.credentials_secret}
    amounts = {name: value for name in ("cpu", "memory") if (value := getattr(options, name)) is not None}
    limits = {"limits": {"memory": options.memory}} if options.memory is not None else {}
    engine: dict[str, Any] = {
        "image": options.image or "",
        "env": [{"name": name, "value": value} for name, value in options.env],
        **({"resources": {"requests": amounts, **limits}} if amounts else {}),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": options.job, "namespace": options.namespace},
        "spec": {"model": model, "engine": engine},
    }


def _option(path: str) -> str:
    return next((option for field, option in _OPTIONS.items() if path.startswith(field)), path)
