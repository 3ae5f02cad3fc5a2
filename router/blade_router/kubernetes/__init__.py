"""The router in a cluster: its endpoints and its configuration, followed through the Kubernetes API.

``api`` asks, ``following`` keeps a mirror of a few objects up to date, ``endpoint_slices`` and ``config_map`` read
them. All of it happens beside the data path, and when the API is away everything known stays as it is.
"""

from blade_router.kubernetes.api import Cluster, find_cluster
from blade_router.kubernetes.config_map import FollowedConfigMap
from blade_router.kubernetes.endpoint_slices import FollowedEndpoints
from blade_router.kubernetes.peers import FollowedPeers

__all__ = ["Cluster", "FollowedConfigMap", "FollowedEndpoints", "FollowedPeers", "find_cluster"]
