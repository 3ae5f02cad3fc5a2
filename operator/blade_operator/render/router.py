"""Router objects: Deployment, Service, the configuration it follows without a restart, and the right to follow it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from blade_operator.model.objects import Object
from blade_operator.model.pods import ROUTER
from blade_operator.model.telemetry import telemetry_env
from blade_operator.render.engine import GRACE_MARGIN
from blade_operator.render.meta import (
    Defaults,
    container_security,
    digest,
    disruption_budget,
    engine_name,
    http_probe,
    labels,
    make,
    pod_security,
    resources,
    router_name,
    seal,
    selector,
    service_account,
    spread,
    tmp_volume,
)
from blade_operator.render.overlay import lay_over
from blade_operator.render.router_config import router_json
from blade_operator.render.router_memory import body_budget, router_resources
from blade_operator.render.router_secrets import keys_rules, secret_flags, secret_mounts, secret_volumes
from blade_operator.render.token_secret import token_env, token_labels, token_mounts, token_volumes
from blade_operator.spec.parse import LLMService
from blade_operator.spec.quantity import parse_bytes, parse_duration
from blade_protocol import environment, paths
from blade_protocol.labels import ABORTED, REVISION, ROLE_ROUTER
from blade_protocol.ports import ROUTER_ADMIN_PORT, ROUTER_PORT
from blade_protocol.routing import ShadowConfig

CONFIG_PATH = "/etc/bladellm"
CONFIG_FILE = "router.json"

PRE_STOP = 5
"""Seconds a terminating router still accepts: until every node has removed it from the Service."""


def router_objects(
    service: LLMService,
    defaults: Defaults,
    replicas: int | None = None,
    weights: Mapping[str, float] | None = None,
    shadow: ShadowConfig | None = None,
    aborted: str = "",
) -> list[Object]:
    """Everything the router needs, the Deployment last.

    Args:
        replicas: how many routers there are to be by the Deployment as it is; None while there is none.
        weights: of revisions, while one is a canary.
        shadow: which of them gets copies of requests.
        aborted: which canary was aborted and why, for the annotation that says so.
    """
    name = router_name(service)
    deployment = _scaled(service, _deployment(service, defaults), replicas)
    identity = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    network = {"type": "ClusterIP", "selector": selector(service, ROLE_ROUTER), "ports": [_port(service)]}
    return [
        service_account(service, name, ROLE_ROUTER),
        *_access(service, defaults, name, identity),
        _configuration(service, name, router_json(service, weights, shadow), aborted),
        make(service, "v1", "Service", name, ROLE_ROUTER, spec=network),
        disruption_budget(service, name, ROLE_ROUTER, {"matchLabels": selector(service, ROLE_ROUTER)}),
        deployment,
    ]


def _configuration(service: LLMService, name: str, text: str, aborted: str) -> Object:
    """The ConfigMap. An abort stands in it, too: it must not be forgotten between two writes."""
    obj = make(service, "v1", "ConfigMap", name, ROLE_ROUTER, data={CONFIG_FILE: text})
    if aborted:
        obj["metadata"]["annotations"][ABORTED] = aborted
        seal(obj)
    return obj


def _scaled(service: LLMService, deployment: Object, replicas: int | None) -> Object:
    """``deployment`` with the ``replicas`` that an autoscaler gave it, where the spec leaves them to one.

    They are applied as they are: left out, they would fall back to 1. They do not count for the hash.
    """
    if service.spec.router.scaling == "Fixed" or replicas is None:
        return deployment
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}


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
    probe = _probe(service)
    container = {
        "name": ROUTER,
        "image": router.image or defaults.router_image,
        "command": ["blade_router"],
        "args": [*_flags(service), *secret_flags(service, defaults)],
        "env": [
            {"name": "BLADE_HOST", "value": "0.0.0.0"},
            {"name": "BLADE_HTTP_PORT", "value": str(ROUTER_PORT)},
            {"name": environment.ADMIN_PORT, "value": str(ROUTER_ADMIN_PORT)},
            *({"name": key, "value": value} for key, value in token_env(defaults).items()),
            *({"name": key, "value": value} for key, value in telemetry_env(service, "blade_router").items()),
        ],
        "ports": [
            {"name": "http", "containerPort": ROUTER_PORT},
            {"name": "admin", "containerPort": ROUTER_ADMIN_PORT},
        ],
        **resources(router_resources(router)),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
        # Live before any engine is: requests wait in it meanwhile.
        "startupProbe": probe(paths.LIVE, period=1, failures=120),
        "readinessProbe": probe(paths.LIVE, period=2, failures=2),
        "livenessProbe": probe(paths.LIVE, period=10, failures=6, timeout=5),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            *token_mounts(defaults),
            *secret_mounts(service),
        ],
    }
    template: Object = {
        "metadata": {"labels": labels(service, ROLE_ROUTER) | token_labels(service, defaults)},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # as process 1 a program that still starts would miss its SIGTERM
            "terminationGracePeriodSeconds": drain + GRACE_MARGIN,
            "securityContext": pod_security(defaults),
            "topologySpreadConstraints": spread({"matchLabels": selector(service, ROLE_ROUTER)}),
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": name}},
                tmp_volume(),
                *token_volumes(service, defaults),
                *secret_volumes(service),
            ],
        },
    }
    template = lay_over(template, router.pod_template)
    # So that a pod of it can be distinguished from one of an earlier template.
    template["metadata"]["labels"][REVISION] = digest(template)[:8]
    spec = {
        "replicas": router.replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": selector(service, ROLE_ROUTER)},
        "template": template,
    }
    return make(service, "apps/v1", "Deployment", name, ROLE_ROUTER, spec=spec)


def _probe(service: LLMService) -> partial[Object]:
    """A probe of the admin port, whose connections a flood of clients does not use up.

    An image of the user's own may be too old to have one.
    """
    router = service.spec.router
    if not router.image:
        return partial(http_probe, port="admin")
    return partial(http_probe, scheme="HTTP" if router.tls is None else "HTTPS")


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
    if router.retry is not None and router.retry.stall_timeout is not None:
        flags += ["--stall_timeout", str(parse_duration(router.retry.stall_timeout))]
    if router.slow_start is not None:
        flags += ["--slow_start", str(parse_duration(router.slow_start))]
    if router.stream_comment_interval is not None:
        flags += ["--stream_comment_interval", str(parse_duration(router.stream_comment_interval))]
    if router.prefix_index_bytes is not None:
        flags += ["--prefix_index_bytes", str(parse_bytes(router.prefix_index_bytes))]
    if router.max_body_bytes is not None:
        flags += ["--max_body_bytes", str(parse_bytes(router.max_body_bytes))]
    if router.max_images is not None:
        flags += ["--max_images", str(router.max_images)]
    if router.max_part_bytes is not None:
        flags += ["--max_part_bytes", str(parse_bytes(router.max_part_bytes))]
    if (budget := body_budget(router)) is not None:
        flags += ["--body_budget_bytes", str(budget)]
    if router.access_log:
        flags += ["--access_log", "-"]
    if not router.ui.enabled:
        flags.append("--no-ui")
    return flags


def _shares(service: LLMService) -> bool:
    """Whether routers need each other's number: to divide limits, which a rolling update with one replica does, too.

    Without limits and a queue the number matters less; an image of the user's own may be too old for the flag.
    """
    router = service.spec.router
    limited = router.auth or router.limits or any(model.limits for model in router.models)
    several = router.replicas > 1 or router.scaling == "External"
    return bool(limited) or (several and (not router.image or router.queue is not None))
