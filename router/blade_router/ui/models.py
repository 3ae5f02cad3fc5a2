"""The models that a viewer may use, as far as the configuration and engines name them."""

from collections.abc import Iterable, Sequence
from itertools import islice

from blade_router.admission.controller import AdmissionController
from blade_router.admission.keys import Key
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.ui.state import Model

MOST = 1000
"""Models that are listed."""

NamedModel = tuple[Model, tuple[str, ...]]
"""A model, and the names of which a key must allow one."""


def named_models(admission: AdmissionController, endpoints: EndpointSet) -> Sequence[NamedModel]:
    """All models: those of the configuration first."""
    found: dict[str, NamedModel] = {}
    for model in admission.catalog.models:
        names = (model.name, *model.aliases)
        found[model.name] = Model(model.name, "base"), names
        for alias in model.aliases:
            found[alias] = Model(alias, "alias", model.name), names
    bases: list[str] = []
    groups: dict[tuple[str | None, frozenset[str]], None] = {}
    for endpoint in endpoints.all:
        report = endpoint.report
        own = sorted(report.models - report.adapters)
        for name in own:
            found.setdefault(name, (Model(name, "base"), (name,)))
        bases += own[:1]
        groups[own[0] if own else None, report.adapters] = None  # replicas have the same
    for base, adapters in groups:
        for name in sorted(adapters):
            found.setdefault(name, (Model(name, "adapter", base), (name,)))
    for name in admission.splits:
        found.setdefault(name, (Model(name, "adapter", bases[0] if bases else None), (name,)))
    return tuple(found.values())


def models_of(key: Key | None, models: Iterable[NamedModel]) -> tuple[Model, ...]:
    """Those that the key may use; None: all."""
    return tuple(islice((model for model, names in models if key is None or key.allows(*names)), MOST))
