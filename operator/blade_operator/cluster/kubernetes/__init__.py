"""A real Kubernetes API server: objects are followed by list and watch, kept trimmed, and written by server-side apply.

``api`` sends requests, ``reflector`` follows one kind, ``trim`` and ``records`` keep what was seen. ``gate``, ``lease``
and ``election`` see to it that only the leader writes. ``cluster`` puts them together as
`blade_operator.cluster.Cluster`.
"""
