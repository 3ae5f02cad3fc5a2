"""Which place a command looks at, by its options."""

from __future__ import annotations

import argparse

from blade_operator.cluster.local.layout import Layout, loop_is_running
from blade_operator.kubectl.places.local_place import LocalPlace
from blade_operator.kubectl.places.place import Place, has_kubeconfig


def open_place(options: argparse.Namespace) -> Place:
    """Where ``options`` lead: ``kubectl llm`` to the cluster of the kubeconfig.

    ``blade_operator`` leads to the local runtime where that runs, unless --kubeconfig or --context names a cluster;
    else to the cluster, where there is a kubeconfig.
    """
    kubeconfig, context = options.kubeconfig, options.context
    if not options.plugin and not kubeconfig and not context:
        layout = Layout.of(options.name)
        if loop_is_running(layout) or not has_kubeconfig():
            return LocalPlace(layout)
    from blade_operator.kubectl.places.cluster_place import (
        ClusterPlace,  # the client of Kubernetes takes long to import
    )

    return ClusterPlace(kubeconfig, context)
