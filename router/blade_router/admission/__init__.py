"""Admission control: who may send requests, how many, and when: between a request and the choice of an endpoint."""

from blade_router.admission.interface import Admission, AdmissionControl, AdmitAll

__all__ = ["Admission", "AdmissionControl", "AdmitAll"]
