"""The commands and their options. Each command is imported only when it runs, so that every one starts quickly."""

from __future__ import annotations

import argparse
import importlib
import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

from blade_operator.cli import fit
from blade_operator.cli.quantize.flags import add_flags
from blade_operator.command_line import (
    Parser,
    addresses,
    count,
    labels,
    names,
    port,
    port_or_none,
    positive,
    variable,
)

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

ROLLOUT = {
    "status": "print how the rollout goes, until it ends",
    "history": "list the revisions",
    "undo": "go back to an earlier revision",
    "pause": "replace no engine until it is resumed",
    "resume": "go on after a pause",
    "restart": "replace every engine, with the same spec",
    "retry": "try the revision again that was rolled back",
}


def no_more(commands: Commands) -> None:
    """Adds no command."""


def parse(argv: Sequence[str], add_more: Callable[[Commands], None] = no_more) -> argparse.Namespace:
    """The parsed options; ``run`` is the function that executes the command. Exits with 2 on a mistake.

    ``add_more`` adds further commands.
    """
    return make_parser(add_more).parse_args(argv)


def make_parser(add_more: Callable[[Commands], None] = no_more) -> Parser:
    """The parser of ``blade_operator``; see `parse`."""
    parser = Parser(
        prog="blade_operator",
        description="Keeps LLMServices as declared. `run` does so on Kubernetes. `local up` runs them on this machine; "
        "the other commands read and change what it keeps.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    _add_run(commands)
    local = commands.add_parser("local", help="run LLMServices on this machine", allow_abbrev=False)
    up = local.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "up",
        help="run the control loop in the foreground until Ctrl-C, which stops everything",
        description="Runs the control loop in the foreground. Ctrl-C drains and stops everything; a killed loop leaves "
        "the service running, and the next `local up` takes it over.",
        allow_abbrev=False,
    )
    _runtime(up)
    up.add_argument(
        "--port",
        type=port,
        default=8080,
        help="port of the first service (default 8080); others get the next free ones",
    )
    source = up.add_mutually_exclusive_group()
    source.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="apply these manifests")
    source.add_argument(
        "--model",
        help="serve this model: a folder, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or a URI as in spec.model.uri",
    )
    up.add_argument("--replicas", type=count, help="engines for --model (default 1)")
    up.add_argument(
        "--idle_to_zero",
        metavar="TIME",
        help="stop the engines of --model when no request has come for so long (60s, 15m), and start one for the next; "
        "--replicas are the most then",
    )
    up.add_argument(
        "--standby", type=count, help="engines for --model beside these that are kept warm, and serve within a second"
    )
    up.add_argument("--ask", metavar="QUESTION", help="when ready, ask this and print the answer as it comes")
    up.set_defaults(run=_command("up"))

    apply = _add(commands, "apply", "apply manifests", "change", "apply")
    apply.add_argument("-f", "--filename", action="append", required=True, metavar="FILE", help="file, or - for stdin")

    get = _add(commands, "get", "list objects", "get")
    get.add_argument("kind", nargs="?", default="llm", help="llm (default), pods, deploy, svc, events, all …")
    get.add_argument("object", nargs="?", metavar="NAME", help="only this one")
    get.add_argument("-o", "--output", choices=["yaml", "json", "wide", "name"], help="output format")
    get.add_argument("-w", "--watch", action="store_true", help="go on printing what changes")

    describe = _add(commands, "describe", "show everything about one LLMService", "describe")
    describe.add_argument("object", nargs="+", metavar="NAME", help="of the LLMService")

    logs = _add(commands, "logs", "print the output of containers", "logs")
    logs.add_argument("object", metavar="NAME", help="an LLMService or a pod")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing what comes")
    logs.add_argument("-c", "--container", help="engine (default), check, fetch or router")
    logs.add_argument("-p", "--previous", action="store_true", help="of the run before the last restart")
    logs.add_argument("--tail", type=count, metavar="LINES", help="only the last lines")

    scale = _add(commands, "scale", "set the number of engines", "change", "scale")
    scale.add_argument("object", metavar="NAME", help="of the LLMService")
    scale.add_argument("--replicas", type=count, required=True, help="engines to run; 0 for none")

    add_rollout(commands, _add_rollout_action)

    delete = _add(commands, "delete", "delete an LLMService and all that belongs to it", "change", "delete")
    delete.add_argument("object", nargs="*", metavar="NAME", help="of LLMServices")
    delete.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="or in these manifests")
    delete.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="return when everything has ended"
    )
    _add_quantize(commands)
    _add_fit(commands)
    add_more(commands)
    return parser.finish()


def _add_fit(commands: Commands) -> None:
    parser = commands.add_parser(
        "fit",
        help="say whether a model fits a GPU or a memory limit",
        description="Says from a model's config.json alone what it takes of a GPU or of memory, how many requests fit "
        "at once, and which flag to change where it does not fit. Speeds are bounds by data sheets.",
        allow_abbrev=False,
    )
    fit.add_flags(parser)
    parser.set_defaults(run=_command("fit"))


def _add_quantize(commands: Commands) -> None:
    quantize = _add(commands, "quantize", "make the Job that quantises a model", "quantize.command")
    quantize.description = (
        "Prints the Job that quantises a model with blade_llm_quantize (`| kubectl apply -f -`), or creates it."
    )
    quantize.add_argument("job", metavar="NAME", help="of the Job")
    quantize.add_argument(
        "--model", required=True, help="the model to quantise: a URI as in spec.model.uri, a hub id, or a folder"
    )
    quantize.add_argument(
        "--output_dir", required=True, metavar="URI", help="where it goes: pvc://CLAIM/FOLDER, new or empty"
    )
    quantize.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml", help="how it is printed")
    quantize.add_argument("--apply", action="store_true", help="create it: here, with --kubeconfig on a cluster")
    quantize.add_argument("--kubeconfig", metavar="FILE", help="of the cluster (default: the local runtime)")
    quantize.add_argument("--revision", help="of an hf:// or modelscope:// model")
    quantize.add_argument("--cache_claim", metavar="CLAIM", help="keep the download there (default: in the pod)")
    quantize.add_argument("--token_secret", metavar="SECRET", help="with the hub's access token in key token")
    quantize.add_argument("--credentials_secret", metavar="SECRET", help="for an s3://, oss:// or oci:// model")
    quantize.add_argument("--image", help="engine image (default: this release's)")
    quantize.add_argument("--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="variable")
    quantize.add_argument("--cpu", metavar="QUANTITY", help="cores to request (default 1)")
    quantize.add_argument("--memory", metavar="QUANTITY", help="memory to request and to limit (default: 2Gi, none)")
    quantize.add_argument("--backoff_limit", type=count, default=6, metavar="N", help="restarts before it fails (6)")
    quantize.add_argument(
        "--report_progress", action="store_true", help="keep an annotation of the Job up to date, with a role for it"
    )
    quantize.add_argument("--openshift", action="store_true", help="name no user and group ids")
    add_flags(quantize)


def add_rollout(commands: Commands, add: Callable[[Commands, str, str], argparse.ArgumentParser]) -> None:
    """Add ``rollout`` and what it does; ``add`` makes the parser of one of its commands."""
    text = "manage how engines are replaced, here or on a cluster"
    rollout = commands.add_parser("rollout", help=text, description=text.capitalize() + ".", allow_abbrev=False)
    actions = rollout.add_subparsers(metavar="COMMAND", required=True)
    for action, text in ROLLOUT.items():
        parser = add(actions, action, text)
        parser.add_argument("object", nargs="+", metavar="NAME", help="of the LLMService; llm/NAME, too")
        parser.set_defaults(action=action)
        if action == "status":
            parser.add_argument(
                "-w", "--watch", action=argparse.BooleanOptionalAction, default=True, help="until it ends (default)"
            )
            parser.add_argument(
                "--timeout", type=count, default=0, metavar="SECONDS", help="to wait (default: no limit)"
            )
        if action == "undo":
            parser.add_argument(
                "--to-revision", type=count, metavar="N", help="the one to go back to (default: before)"
            )


def _add_rollout_action(commands: Commands, action: str, text: str) -> argparse.ArgumentParser:
    parser = _add(commands, action, text, "rollout")
    parser.add_argument("--kubeconfig", metavar="FILE", help="of the cluster (default: the local runtime)")
    return parser


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="keep LLMServices on a Kubernetes cluster",
        description="Keeps the LLMServices of a Kubernetes cluster as declared, until it is stopped.",
        allow_abbrev=False,
    )
    run.add_argument("--namespaces", type=names, default=[], metavar="A,B", help="work in these only (default: all)")
    run.add_argument("--engine_image", metavar="IMAGE", help="of engines whose spec names none")
    run.add_argument("--router_image", metavar="IMAGE", help="of routers whose spec names none")
    run.add_argument(
        "--leader_elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write only while holding a Lease, so that several may run (default); --no-leader_elect for one alone",
    )
    run.add_argument("--lease_name", default="bladellm-operator", metavar="NAME", help="of the Lease")
    run.add_argument("--lease_namespace", metavar="NAMESPACE", help="of the Lease and the key (default: the pod's own)")
    run.add_argument("--identity", default=socket.gethostname(), help="holder of the Lease (default: the host's name)")
    run.add_argument(
        "--http_port", type=port_or_none, default=8080, help="/healthz, /readyz, /metrics (default 8080; 0: off)"
    )
    run.add_argument(
        "--watch_keys",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="grant routers to follow their Secret of API keys, which takes the right to list and watch Secrets; "
        "--no-watch_keys: they follow the mounted Secret (default)",
    )
    run.add_argument(
        "--openshift",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="pods name no user and group ids: OpenShift gives them those of their namespace",
    )
    run.add_argument(
        "--prometheus_namespaces",
        type=lambda text: tuple(names(text)),
        metavar="A,B",
        help="NetworkPolicies let in pods of these to scrape metrics (default: monitoring; empty: none)",
    )
    run.add_argument(
        "--prometheus_labels",
        type=labels,
        metavar="NAME=VALUE,…",
        help="that have these labels (default: app.kubernetes.io/name=prometheus; empty: all pods there)",
    )
    run.add_argument(
        "--api_server",
        type=addresses,
        metavar="CIDR:PORT,…",
        help="NetworkPolicies let routers connect to these, DNS and their engines only (default: not restricted)",
    )
    run.add_argument(
        "--group_kind",
        choices=["auto", "StatefulSet", "LeaderWorkerSet"],
        help="what is made for an engine on several machines (default auto: a LeaderWorkerSet where the cluster has "
        "that kind)",
    )
    run.add_argument(
        "--external_metrics_port",
        type=port_or_none,
        default=0,
        help="external metrics API for HorizontalPodAutoscalers, by TLS, to the API server only (default 0: off)",
    )
    run.add_argument(
        "--external_metrics_certificate",
        default="/etc/bladellm-external-metrics",
        metavar="FOLDER",
        help="with its tls.crt and tls.key, which may be replaced (default: %(default)s)",
    )
    run.add_argument("--kubeconfig", metavar="FILE", help="default: the pod's own account, else $KUBECONFIG")
    run.add_argument("--workers", type=positive, default=8, help="services acted on at a time (default 8)")
    run.add_argument("--log_level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    run.add_argument("--log_format", default="text", choices=["text", "json"])
    run.set_defaults(run=_command("run"))


def _add(commands: Commands, name: str, text: str, module: str, function: str = "run") -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
    _runtime(parser)
    parser.add_argument("-n", "--namespace", default="default", help="namespace (default: default)")
    parser.set_defaults(run=_command(module, function))
    return parser


def _runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="which local runtime, if there are several")


def _command(module: str, function: str = "run") -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"blade_operator.cli.{module}"), function)(options)
        return code

    return run
