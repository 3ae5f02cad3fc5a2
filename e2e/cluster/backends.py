"""Which cluster the tests get: whatever this machine has, in a fixed order.

1. ``E2E_KUBECONFIG``: any existing cluster (its images are named by ``E2E_IMAGES``).
2. ``KUBE_ASSETS``: a folder with the Kubernetes programs; a node of our own is made from them.
3. kind, when Docker and kind are installed.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.cluster.assets import Assets
from e2e.cluster.base import Cluster, Unsupported
from e2e.cluster.layout import Layout
from e2e.cluster.own_node import OwnNode

DEFAULT_NAME: Final = "e2e"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
HOW_TO_GET_ONE: Final = (
    "no Kubernetes for the e2e tests: set E2E_KUBECONFIG=<file> (any cluster), or KUBE_ASSETS=<folder with the "
    "programs>, or install Docker and kind (docs/e2e.md)"
)


class NoCluster(Exception):
    """This machine has none of the ways to a cluster."""


class Existing(Cluster):
    """Somebody's cluster, used as it is, and never taken down."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def load_images(self, archives: Sequence[Path]) -> None:
        raise Unsupported("an existing cluster pulls its images: name them in E2E_IMAGES=engine=IMAGE,operator=IMAGE")

    def static_volume(
        self, namespace: str, claim: str, folder: Path, size: str = "10Gi", writable: bool = False
    ) -> None:
        raise Unsupported("an existing cluster's nodes do not have this machine's folders")

    def volume_for(self, namespace: str, claim: str, folder: Path, size: str = "100Gi") -> None:
        raise Unsupported("an existing cluster's nodes do not have this machine's folders")

    def down(self) -> None:
        """Leave the cluster up: it is not ours."""


class Kind(Cluster):
    """A kind cluster; its node sees the repository and the temporary folder under their own paths (static volumes)."""

    def __init__(self, name: str) -> None:
        self.name = f"bladellm-{name}"
        self.kubeconfig = Path(tempfile.gettempdir()) / f"{self.name}.kubeconfig"

    def is_up(self) -> bool:
        done = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True)
        return self.kubeconfig.exists() and self.name in done.stdout.split()

    def up(self) -> None:
        mounts = "".join(
            f"\n  - {{hostPath: {path}, containerPath: {path}}}" for path in (REPOSITORY, tempfile.gettempdir())
        )
        config = (
            "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n  extraMounts:" + mounts
        )
        command = ["kind", "create", "cluster", "--name", self.name, "--kubeconfig", str(self.kubeconfig)]
        subprocess.run([*command, "--config", "-", "--wait", "120s"], input=config, text=True, check=True)

    def load_images(self, archives: Sequence[Path]) -> None:
        for archive in archives:
            subprocess.run(["kind", "load", "image-archive", str(archive), "--name", self.name], check=True)

    def down(self) -> None:
        subprocess.run(["kind", "delete", "cluster", "--name", self.name], check=True)
        self.kubeconfig.unlink(missing_ok=True)


def find(name: str = DEFAULT_NAME, environment: Mapping[str, str] = os.environ) -> OwnNode | Existing | Kind:
    """The cluster this machine can give, up or not; raises NoCluster, AssetError, ValueError (bad name)."""
    if kubeconfig := environment.get("E2E_KUBECONFIG"):
        return Existing(Path(kubeconfig).resolve())
    if assets := environment.get("KUBE_ASSETS"):
        return OwnNode(name, Assets(Path(assets).resolve()))
    if shutil.which("docker") and shutil.which("kind"):
        return Kind(Layout(name).name)
    raise NoCluster(HOW_TO_GET_ONE)


def is_up(cluster: Cluster) -> bool:
    if isinstance(cluster, OwnNode | Kind):
        return cluster.is_up()
    return cluster.run(["kubectl", "get", "--raw", "/readyz"]).returncode == 0
