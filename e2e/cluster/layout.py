"""Where everything of one cluster lies, and which addresses it uses.

All addresses are inside the cluster's own network namespace, so every cluster uses the same ones and two clusters of
different names live side by side. All files are below one folder, so that nothing is left once it is removed.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODE: Final = "node1"
NODE_ADDRESS: Final = "10.66.0.1"
"""Address of the bridge that carries the API server, the node and the DNS server."""
API_PORT: Final = 16443
SERVICES: Final = "10.96.0.0/16"
"""Wide enough for a few thousand Services (the scale tests)."""
API_SERVICE: Final = "10.96.0.1"
PODS: Final = "10.67.0.0/24"
KWOK_PODS: Final = "10.68.0.1/16"
BRIDGE: Final = "nodebr"


@dataclass(frozen=True)
class Layout:
    """Names and folders of the cluster ``name``; raises ValueError for a name that cannot be one."""

    name: str

    def __post_init__(self) -> None:
        # Bounded, because Unix socket paths end at 107 characters.
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?", self.name):
            raise ValueError(
                f"{self.name!r} cannot name a cluster: use up to 24 lower-case letters, digits and dashes, "
                "with a letter or digit at both ends"
            )

    @property
    def folder(self) -> Path:
        return Path(tempfile.gettempdir()) / "bladellm-e2e" / self.name

    @property
    def network(self) -> str:
        """Name of the network namespace, of the pod network and of the cgroup all pods are in."""
        return f"bladellm-{self.name}"

    @property
    def network_file(self) -> Path:
        return Path("/run/netns") / self.network

    @property
    def enter(self) -> tuple[str, ...]:
        """Arguments to put before a command that is to run inside.

        Not ``ip netns exec``: that one remounts /sys, which hides the cgroups from the kubelet.
        """
        return ("nsenter", f"--net={self.network_file}")

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def processes(self) -> Path:
        return self.folder / "processes"

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        return self.folder / "containerd-state"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def summary(self) -> Path:
        """Written last: a cluster with this file came up completely."""
        return self.folder / "cluster.json"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"
