"""The router in a cluster: its endpoints and its configuration, watched through the Kubernetes API.

``api`` sends the requests, ``reflector`` keeps an informer cache of a few objects by list and watch, and
``endpoint_slices``, ``config_map``, ``secret`` and ``replicas`` read it. All of it happens beside the data path,
and while the API is away everything known stays in effect.
"""

from blade_router.kubernetes.api import Cluster, find_cluster
from blade_router.kubernetes.config_map import ConfigMapSource
from blade_router.kubernetes.endpoint_slices import EndpointSliceSource
from blade_router.kubernetes.replicas import ServiceReplicas

__all__ = ["Cluster", "ConfigMapSource", "EndpointSliceSource", "ServiceReplicas", "find_cluster"]
