"""This machine as a cluster: objects as files, pods as processes.

It takes the very objects the operator renders for Kubernetes and runs a closed list of them, so that the control loop
that serves a laptop is the one that serves a cluster. ``runtime`` puts the parts together; each part is one
controller of Kubernetes, small: ``kubelet`` (pods), ``deployments``, ``services``, ``endpoints``, ``garbage``.
"""
