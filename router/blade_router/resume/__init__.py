"""Resuming a stream whose engine is gone: what was sent of it is known, and another replica sends the rest."""

from blade_router.resume.resume_state import ResumeState, read_resume_state, resume_headers, supports_resume
from blade_router.resume.resumer import Resumer
from blade_router.resume.stream import MAX_BUFFERED, EventStream, ResumableStream, event_stream

__all__ = [
    "MAX_BUFFERED",
    "EventStream",
    "ResumableStream",
    "ResumeState",
    "Resumer",
    "event_stream",
    "read_resume_state",
    "resume_headers",
    "supports_resume",
]
