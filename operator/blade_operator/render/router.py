"""Router objects: Deployment, Service, the configuration it follows without a restart, and the right to follow it."""

from __future__ import annotations

from blade_operator.model.objects import Object
from blade_operator.model.pods import ROUTER
from blade_operator.render.engine import GRACE_MARGIN
from blade_operator.render.meta import (
    Defaults,
    container_security,
    disruption_budget,
    engine_name,
    http_probe,
    labels,
    make,
    pod_security,
    resources,
    router_name,
    selector,
    service_account,
    spread,
    tmp_volume,
)
from blade_operator.render.overlay import lay_over
from blade_operator.render.router_config import router_json
from blade_operator.render.router_secrets import keys_rules, secret_flags, secret_mounts, secret_volumes
from blade_operator.render.token_secret import token_env, token_mounts, token_volumes
from blade_operator.spec.parse import LLMService
from blade_operator.spec.pod_fields import ResourceList, Resources
from blade_operator.spec.quantity import parse_bytes, parse_duration
from blade_protocol import paths
from blade_protocol.labels import ROLE_ROUTER
from blade_protocol.ports import ROUTER_PORT

CONFIG_PATH = "/etc/bladellm"
CONFIG_FILE = "router.json"

PRE_STOP = 5
"""Seconds a terminating router still accepts: until every node has removed it from the Service."""
RESOURCES = Resources(requests=ResourceList(cpu="100m", memory="128Mi"))
"""Resources of a router unless the spec sets them. An idle one has 50 MB and no measurable load; no limits."""


def router_objects(service: LLMService, defaults: Defaults) -> list[Object]:
    """Everything the router needs, the Deployment last."""
    name = router_name(service)
    deployment = _deployment(service, defaults)
    identity = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    network = {"type": "ClusterIP", "selector": selector(service, ROLE_ROUTER), "ports": [_port(service)]}
    return [
        service_account(service, name, ROLE_ROUTER),
        *_access(service, defaults, name, identity),
        make(service, "v1", "ConfigMap", name, ROLE_ROUTER, data={CONFIG_FILE: router_json(service)}),
        make(service, "v1", "Service", name, ROLE_ROUTER, spec=network),
        disruption_budget(service, name, ROLE_ROUTER),
        deployment,
    ]


def _port(service: LLMService) -> Object:
    """The Service's port; its name declares the protocol to meshes and gateways."""
    if service.spec.router.tls is None:
        return {"name": "http", "port": ROUTER_PORT, "targetPort": "http"}
    return {"name": "https", "appProtocol": "https", "port": ROUTER_PORT, "targetPort": "http"}


def _access(service: LLMService, defaults: Defaults, name: str, identity: str) -> list[Object]:
    """Role and binding to watch its own ConfigMap and Secret of keys, and the endpoints of the namespace."""
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        *keys_rules(service, defaults),
    ]
    api = "rbac.authorization.k8s.io"
    return [
        make(service, f"{api}/v1", "Role", name, ROLE_ROUTER, rules=rules),
        make(
            service,
            f"{api}/v1",
            "RoleBinding",
            name,
            ROLE_ROUTER,
            roleRef={"apiGroup": api, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": identity, "namespace": service.namespace}],
        ),
    ]


def _deployment(service: LLMService, defaults: Defaults) -> Object:
    router, name = service.spec.router, router_name(service)
    drain = parse_duration(service.spec.rollout.drain_timeout)
    scheme = "HTTP" if router.tls is None else "HTTPS"
    container = {
        "name": ROUTER,
        "image": router.image or defaults.router_image,
        "command": ["blade_router"],
        "args": [*_flags(service), *secret_flags(service, defaults)],
        "env": [
            {"name": "BLADE_HOST", "value": "0.0.0.0"},
            {"name": "BLADE_HTTP_PORT", "value": str(ROUTER_PORT)},
            *({"name": key, "value": value} for key, value in token_env(defaults).items()),
        ],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        **resources(router.resources or RESOURCES),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
        # Live before any engine is: requests wait in it meanwhile.
        "startupProbe": http_probe(paths.LIVE, period=1, failures=120, scheme=scheme),
        "readinessProbe": http_probe(paths.LIVE, period=2, failures=2, scheme=scheme),
        "livenessProbe": http_probe(paths.LIVE, period=10, failures=6, timeout=5, scheme=scheme),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            *token_mounts(defaults),
            *secret_mounts(service),
        ],
    }
    template = {
        "metadata": {"labels": labels(service, ROLE_ROUTER)},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # as process 1 a program that still starts would miss its SIGTERM
            "terminationGracePeriodSeconds": drain + GRACE_MARGIN,
            "securityContext": pod_security(),
            "topologySpreadConstraints": spread(service, ROLE_ROUTER),
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": name}},
                tmp_volume(),
                *token_volumes(service, defaults),
                *secret_volumes(service),
            ],
        },
    }
    spec = {
        "replicas": router.replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": selector(service, ROLE_ROUTER)},
        "template": lay_over(template, router.pod_template),
    }
    return make(service, "apps/v1", "Deployment", name, ROLE_ROUTER, spec=spec)


def _flags(service: LLMService) -> list[str]:
    """The command line, without flags that the spec leaves to the router, so that an older image starts, too."""
    router, name = service.spec.router, router_name(service)
    drain = parse_duration(service.spec.rollout.drain_timeout)
    flags = ["--host", "$(BLADE_HOST)", "--port", "$(BLADE_HTTP_PORT)", "--service", engine_name(service)]
    flags += ["--config", f"{CONFIG_PATH}/{CONFIG_FILE}", "--config_map", name, "--drain_timeout", str(drain)]
    if router.allow_client_priority:
        flags.append("--allow_client_priority")
    if router.workers > 1:
        flags += ["--workers", str(router.workers)]
    if _shares(service):
        flags += ["--peers", name]
    if router.retry is not None and router.retry.max_tries is not None:
        flags += ["--max_tries", str(router.retry.max_tries)]
    if router.retry is not None and router.retry.first_byte_timeout is not None:
        flags += ["--first_byte_timeout", str(parse_duration(router.retry.first_byte_timeout))]
    if router.slow_start is not None:
        flags += ["--slow_start", str(parse_duration(router.slow_start))]
    if router.prefix_index_bytes is not None:
        flags += ["--prefix_index_bytes", str(parse_bytes(router.prefix_index_bytes))]
    if router.access_log:
        flags += ["--access_log", "-"]
    return flags


def _shares(service: LLMService) -> bool:
    """Whether routers need each other's number: to divide limits, which a rolling update with one replica does, too.

    Without limits and a queue the number matters less; an image of the user's own may be too old for the flag.
    """
    router = service.spec.router
    limited = router.auth or router.limits or any(model.limits for model in router.models)
    return bool(limited) or (router.replicas > 1 and (not router.image or router.queue is not None))
