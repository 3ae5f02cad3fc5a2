"""Deployments, Services and ConfigMaps as the operator renders them, around `program.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from blade_operator.model.objects import Object
from blade_protocol.labels import NAME, REVISION, ROLE, ROLE_ENGINE, ROLE_ROUTER

PROGRAM = str(Path(__file__).with_name("program.py"))
SERVICE = "qwen"


def init_container(name: str, code: str) -> Object:
    """An init container that runs a piece of Python."""
    return {
        "name": name,
        "command": [sys.executable, "-c", code],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def container(name: str, *args: str, **more: Any) -> Object:
    """The stand-in, with its ports movable as the operator renders them."""
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 0.1, "failureThreshold": 200}
    env = {"BLADE_HOST": "0.0.0.0", "BLADE_HTTP_PORT": "8081", "BLADE_INTERNAL_PORT": "9081"} | more.pop("env", {})
    return {
        "name": name,
        "image": "ignored",
        "command": [sys.executable, PROGRAM],
        "args": [
            *("--host", "$(BLADE_HOST)", "--port", "$(BLADE_HTTP_PORT)", "--internal_port", "$(BLADE_INTERNAL_PORT)"),
            *args,
        ],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "ports": [{"name": "http", "containerPort": 8081}, {"name": "internal", "containerPort": 9081}],
        "startupProbe": probe,
        "readinessProbe": {**probe, "failureThreshold": 2},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **more,
    }


def deployment(
    *args: str, name: str = "qwen-engine-aaa", role: str = ROLE_ENGINE, replicas: int = 1, **pod: Any
) -> Object:
    """A Deployment of the stand-in; ``pod`` adds to the pod's spec."""
    labels = {NAME: SERVICE, ROLE: role, REVISION: name.rpartition("-")[2]}
    spec = {"terminationGracePeriodSeconds": 5, "containers": [container(role, *args)], **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def service(role: str = ROLE_ENGINE) -> Object:
    """The Service of a role: headless for engines."""
    name = f"{SERVICE}-{role}"
    headless = {"clusterIP": "None"} if role == ROLE_ENGINE else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "labels": {NAME: SERVICE, ROLE: role}},
        "spec": {
            **headless,
            "selector": {NAME: SERVICE, ROLE: role},
            "ports": [{"name": "http", "port": 8080, "targetPort": "http"}],
        },
    }


def router(*args: str) -> Object:
    """The router's Deployment."""
    return deployment(*args, name="qwen-router", role=ROLE_ROUTER)


def config_map(name: str, **data: str) -> Object:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {NAME: SERVICE}},
        "data": data,
    }
