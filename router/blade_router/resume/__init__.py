"""A stream outlives the engine that began it: what was sent of it is known, and another replica sends the rest."""

from blade_router.resume.continuation import Continuation, Resumer
from blade_router.resume.stream import MAX_HELD, EventStream, ResumableStream, event_stream
from blade_router.resume.ticket import Ticket, answers_resume, asking, ticket_of

__all__ = [
    "MAX_HELD",
    "Continuation",
    "EventStream",
    "ResumableStream",
    "Resumer",
    "Ticket",
    "answers_resume",
    "asking",
    "event_stream",
    "ticket_of",
]
