"""The external metrics API (`external.metrics.k8s.io`): what a HorizontalPodAutoscaler reads of LLMServices.

``server`` responds to the API server's aggregation layer over TLS (``listener``), to nobody else (``front_proxy``) and
to each user only what they may read (``access``). ``catalog`` has the metrics, ``samples`` asks routers and engines for
what they are made of, and only about services that someone asks for. See ``docs/decisions/0030-external-metrics.md``.
"""
