"""The ``LLMService`` API: its fields, rules, CRD and reference, all from one set of models.

Users of this package need `parse_service` (an object as stored → `LLMService`), `apply_defaults` (what an API server
fills in on write) and `columns` (what ``kubectl get`` prints).
"""

from blade_operator.spec.crd.defaults import apply_defaults
from blade_operator.spec.crd.printer_columns import columns
from blade_operator.spec.errors import Problem, SpecError
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.parse import LLMService, check_change, parse_adapter, parse_service

__all__ = [
    "LLMService",
    "LLMServiceSpec",
    "Problem",
    "SpecError",
    "apply_defaults",
    "check_change",
    "columns",
    "parse_adapter",
    "parse_service",
]
