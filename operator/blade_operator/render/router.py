"""Router objects: Deployment, Service, the configuration it follows without a restart, and the right to follow it."""

from __future__ import annotations

import msgspec

from blade_operator.objects import Object
from blade_operator.pods import ROUTER
from blade_operator.render.engine import GRACE_MARGIN
from blade_operator.render.internal import token_env, token_mounts, token_volumes
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
from blade_operator.spec.parse import LLMService
from blade_operator.spec.pod_fields import ResourceList, Resources
from blade_operator.spec.quantity import parse_duration
from blade_protocol import paths
from blade_protocol.labels import ROLE_ROUTER
from blade_protocol.ports import ROUTER_PORT
from blade_protocol.routing import ModelConfig, PolicyName, RouterConfig

CONFIG_PATH = "/etc/bladellm"
CONFIG_FILE = "router.json"
POLICIES: dict[str, PolicyName] = {"auto": "auto", "roundRobin": "round-robin", "leastRequest": "least-request"}

PRE_STOP = 5
"""Seconds a leaving router still accepts: until every node has taken it out of the Service."""
RESOURCES = Resources(requests=ResourceList(cpu="100m", memory="128Mi"))
"""What a router gets when the spec is silent. One at rest has 50 MB and no measurable load; limits would only hurt."""


def router_objects(service: LLMService, defaults: Defaults) -> list[Object]:
    """Everything the router needs, the Deployment last."""
    name = router_name(service)
    deployment = _deployment(service, defaults)
    identity = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    models = tuple(ModelConfig(name=name) for name in service.served_names)
    config = RouterConfig(policy=POLICIES[service.spec.router.policy], models=models)
    settings = msgspec.to_builtins(config)
    data = {CONFIG_FILE: msgspec.json.encode(settings, order="sorted").decode()}
    network = {
        "type": "ClusterIP",
        "selector": selector(service, ROLE_ROUTER),
        "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http"}],
    }
    return [
        service_account(service, name, ROLE_ROUTER),
        *_access(service, name, identity),
        make(service, "v1", "ConfigMap", name, ROLE_ROUTER, data=data),
        make(service, "v1", "Service", name, ROLE_ROUTER, spec=network),
        disruption_budget(service, name, ROLE_ROUTER),
        deployment,
    ]


def _access(service: LLMService, name: str, identity: str) -> list[Object]:
    """The right to follow the own ConfigMap and the endpoints of the namespace."""
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
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
    args = ["--host", "$(BLADE_HOST)", "--port", "$(BLADE_HTTP_PORT)", "--service", engine_name(service)]
    args += ["--config", f"{CONFIG_PATH}/{CONFIG_FILE}", "--config_map", name]
    args += ["--drain_timeout", str(drain)]
    container = {
        "name": ROUTER,
        "image": router.image or defaults.router_image,
        "command": ["blade_router"],
        "args": args,
        "env": [
            {"name": "BLADE_HOST", "value": "0.0.0.0"},
            {"name": "BLADE_HTTP_PORT", "value": str(ROUTER_PORT)},
            *({"name": key, "value": value} for key, value in token_env(defaults).items()),
        ],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        **resources(router.resources or RESOURCES),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
        # Live before any engine is: it answers 503 with Retry-After by itself meanwhile.
        "startupProbe": http_probe(paths.LIVE, period=1, failures=120),
        "readinessProbe": http_probe(paths.LIVE, period=2, failures=2),
        "livenessProbe": http_probe(paths.LIVE, period=10, failures=6, timeout=5),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            *token_mounts(defaults),
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
