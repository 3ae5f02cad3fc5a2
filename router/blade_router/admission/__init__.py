"""Who may ask, how much, and when: what stands between a request and the choice of an endpoint."""

from blade_router.admission.gate import Gate, OpenGate, Queue, Slot, Ticket

__all__ = ["Gate", "OpenGate", "Queue", "Slot", "Ticket"]
