"""The models that a viewer may use, as far as the configuration and engines name them."""

from blade_router.admission.controller import AdmissionController
from blade_router.admission.keys import Key
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.ui.state import Model

MOST = 1000
"""Models that are listed."""


def models(admission: AdmissionController, endpoints: EndpointSet, key: Key | None) -> tuple[Model, ...]:
    """Those of the configuration first; ``key``: whose they are, None for all."""
    found: dict[str, Model] = {}
    for model in admission.catalog.models:
        if key is None or key.allows(model.name, *model.aliases):
            found[model.name] = Model(model.name, "base")
            for alias in model.aliases:
                found[alias] = Model(alias, "alias", model.name)
    base: str | None = None
    for endpoint in endpoints.all:
        report = endpoint.report
        for name in sorted(report.models - report.adapters):
            base = base or name
            if key is None or key.allows(name):
                found.setdefault(name, Model(name, "base"))
    adapters = frozenset[str]().union(*(endpoint.report.adapters for endpoint in endpoints.all))
    for name in (*sorted(adapters), *admission.splits):
        if len(found) >= MOST:
            break
        if key is None or key.allows(name):
            found.setdefault(name, Model(name, "adapter", base))
    return tuple(found.values())
