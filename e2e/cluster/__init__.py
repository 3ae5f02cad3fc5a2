"""A real Kubernetes for the end-to-end tests: ``python -m e2e.cluster up``, and `find` for the tests."""

from e2e.cluster.backends import DEFAULT_NAME, Existing, Kind, NoCluster, find, is_up
from e2e.cluster.base import Cluster, CommandFailed, Unsupported
from e2e.cluster.own_node import OwnNode

__all__ = [
    "DEFAULT_NAME",
    "Cluster",
    "CommandFailed",
    "Existing",
    "Kind",
    "NoCluster",
    "OwnNode",
    "Unsupported",
    "find",
    "is_up",
]
