"""``python -m e2e.cluster``: a cluster to try things on by hand."""

import argparse
import os
import signal
import sys
from pathlib import Path

from e2e.cluster import Cluster, Kind, NoCluster, OwnNode, find, is_up
from e2e.cluster.backends import DEFAULT_NAME
from e2e.cluster.errors import ERRORS


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    top.add_argument("--name", default=os.environ.get("E2E_CLUSTER", DEFAULT_NAME), help="several live side by side")
    commands = top.add_subparsers(dest="command", required=True)
    # `up --name N` as well as `--name N up`
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    up = commands.add_parser("up", parents=[named], help="bring it up (20 s)")
    up.add_argument("--kwok", type=int, default=0, metavar="N", help="add N fake nodes")
    up.add_argument("--gpus", type=int, default=8, metavar="N", help="fake GPUs on the real node, of each vendor (8)")
    up.add_argument(
        "--node-grace", type=int, default=20, metavar="S", help="seconds until a silent node is NotReady (20)"
    )
    up.add_argument("--crds", type=Path, nargs="*", default=[], help="CRD files or folders to apply at the very start")
    commands.add_parser("down", parents=[named], help="remove it, whatever state it is in")
    commands.add_parser("status", parents=[named], help="its processes and its node")
    commands.add_parser("kubectl", help="kubectl against it")
    commands.add_parser("exec", help="a command inside its network, with KUBECONFIG set: exec -- CMD …")
    load = commands.add_parser("load-image", parents=[named], help="put docker archives on the node")
    load.add_argument("archives", type=Path, nargs="+")
    return top


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and what follows `kubectl` or `exec`: that is another program's, options and all."""
    for position, argument in enumerate(argv, start=1):
        if argument in ("kubectl", "exec"):
            rest = argv[position:]
            return argv[:position], rest[1:] if rest[:1] == ["--"] else rest
    return argv, []


def bring_up(cluster: Cluster, options: argparse.Namespace) -> None:
    if is_up(cluster):
        print("already up")
        if isinstance(cluster, OwnNode):
            cluster.add_kwok_nodes(options.kwok)
    elif isinstance(cluster, OwnNode):
        cluster.up(gpus=options.gpus, kwok_nodes=options.kwok, node_grace=options.node_grace, crds=options.crds)
        print(f"up; KUBECONFIG={cluster.kubeconfig}, reach it by: {' '.join(cluster.enter)} CMD")
    elif isinstance(cluster, Kind):
        cluster.up()
    else:
        raise NoCluster(f"the cluster of {cluster.kubeconfig} does not respond")


def show_status(cluster: Cluster) -> int:
    if isinstance(cluster, OwnNode):
        for name in cluster.processes.names():
            pid = cluster.processes.pid(name)
            print(f"{name:<26} {f'pid {pid}' if pid else 'DEAD'}")
    if not is_up(cluster):
        print("down")
        return 1
    print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")
    return 0


def replace_by(cluster: Cluster, argv: list[str]) -> int:
    if not argv:
        raise ValueError("name a command: exec -- CMD …")
    if not is_up(cluster):
        raise NoCluster("no cluster is up: python -m e2e.cluster up")
    command = [*cluster.enter, *argv]
    os.execvpe(command[0], command, cluster.environment)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it cleans up as after Ctrl-C
    own, rest = split_command(sys.argv[1:])
    options = parser().parse_args(own)
    try:
        cluster = find(options.name)
        match options.command:
            case "up":
                bring_up(cluster, options)
            case "down":
                cluster.down()
            case "status":
                return show_status(cluster)
            case "load-image":
                cluster.load_images(options.archives)
            case "kubectl":
                return replace_by(cluster, ["kubectl", *rest])
            case "exec":
                return replace_by(cluster, rest)
    except ERRORS as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
