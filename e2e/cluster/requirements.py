"""Whether this machine can run a node at all, said in one sentence before anything is started."""

import os
import shutil
from pathlib import Path

from e2e.cluster.cgroups import hierarchies
from e2e.cluster.node import CNI_PLUGINS

PACKAGES = {
    "etcd": "etcd-server",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "busybox": "busybox-static",
}
"""Program → Debian package."""


class MissingRequirement(Exception):
    """What is missing, and how to get it."""


def check_requirements() -> None:
    """Raises MissingRequirement."""
    if os.geteuid() != 0:
        raise MissingRequirement("the e2e node needs root: it makes network namespaces, cgroups and mounts")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program, path=path)]
    if not (Path(CNI_PLUGINS) / "bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        raise MissingRequirement(f"Debian packages are missing ({' '.join(missing)}): run `make e2e-deps`")
    if not hierarchies():
        raise MissingRequirement("no cgroup hierarchy is mounted below /sys/fs/cgroup")
