"""What can go wrong here and is somebody's to fix: each message says what to change."""

from __future__ import annotations


class LocalError(Exception):
    """Base of this package's errors."""


class NotFound(LocalError):
    """No object of that kind and name."""


class Conflict(LocalError):
    """An object of that name exists already, or the name cannot be one."""


class UnsupportedField(LocalError):
    """An object asks for something the local runtime does not do: it is refused rather than quietly ignored."""


class StateInUse(LocalError):
    """Another control loop works on this state folder."""


class PortInUse(LocalError):
    """A port that was asked for belongs to another program."""


class ContainerConfigError(LocalError):
    """A container cannot start before something else changes (a missing Secret, a program that is not installed)."""
