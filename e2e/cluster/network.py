"""One network namespace for control plane, node, pods and tests.

It has no way out: the kubelet does not query cloud metadata, images cannot be pulled by accident, and what kube-proxy
does to iptables stays inside.
"""

import subprocess

from e2e.cluster.layout import BRIDGE, NODE_ADDRESS, SERVICES, Layout


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr.strip()}")


def make_network(layout: Layout) -> None:
    """Raises RuntimeError with the words of the command that failed."""
    _run("ip", "netns", "add", layout.network)
    for command in (
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip addr add {NODE_ADDRESS}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        f"ip route add {SERVICES} dev {BRIDGE}",
        "sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
    ):
        _run(*layout.enter, *command.split())


def remove_network(layout: Layout) -> None:
    if layout.network_file.exists():
        _run("ip", "netns", "del", layout.network)
