"""A real Kubernetes API server: kopf lists and watches, an informer cache keeps what it saw, server-side apply writes.

Events: ``event_source`` (kopf) → ``informer_cache`` (``trim``) → ``cluster``; ``supervisor`` runs kopf again when it
ends, ``sweep`` corrects the cache, ``scopes`` know what is watched where. Writes: ``cluster`` → ``api``. Leader
election: ``lease``, ``election`` and ``fence``, which fences writes off. ``cluster`` is
`blade_operator.cluster.Cluster`.
"""
