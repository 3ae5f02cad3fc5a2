"""Errors of the local runtime that its user can fix: each message says what to change."""

from __future__ import annotations


class LocalError(Exception):
    """Base of this package's errors."""


class NotFound(LocalError):
    """No object of that kind and name."""


class Conflict(LocalError):
    """An object of that name exists already, or the name cannot be one."""


class Changed(LocalError):
    """An object has changed since it was read."""


class UnsupportedField(LocalError):
    """An object has a field the local runtime does not support: it is rejected rather than silently ignored."""


class StateInUse(LocalError):
    """Another control loop uses this state folder."""


class PortInUse(LocalError):
    """A requested port is used by another program."""


class ContainerConfigError(LocalError):
    """A container cannot start before something else changes (a missing Secret, a program that is not installed)."""
