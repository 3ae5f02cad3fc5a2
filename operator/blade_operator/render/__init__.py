"""From a valid LLMService to the Kubernetes objects that run it. Pure functions: same spec in, same objects out."""

from blade_operator.render.engine import engine_objects, pod_template
from blade_operator.render.meta import Defaults, desired_hash
from blade_operator.render.revisions import controller_revision, restorable, revision_of
from blade_operator.render.router import router_objects
from blade_operator.render.service import service_objects
from blade_operator.render.spec_hash import spec_hash
from blade_operator.render.workloads import engine_deployment, engine_group, nodes_of, with_members

__all__ = [
    "Defaults",
    "controller_revision",
    "desired_hash",
    "engine_deployment",
    "engine_group",
    "engine_objects",
    "nodes_of",
    "pod_template",
    "restorable",
    "revision_of",
    "router_objects",
    "service_objects",
    "spec_hash",
    "with_members",
]
