"""One failure of a service, with its message and the field to change."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

LINE_LIMIT = 400
_ALWAYS = frozenset({"pod", "container", "exitCode", "restarts"})
_OUT_OF_MEMORY = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Failure:
    """A container that failed, a pod that cannot run, pods that cannot be created, or an object that is rejected."""

    role: str
    """``engine`` or ``router``; empty for an object that belongs to neither."""
    pod: str
    """Name of the pod; empty where there is none."""
    container: str
    """Name of the container; empty where none is the cause."""
    reason: str
    message: str
    exit_code: int = 0
    restarts: int = 0
    """Number of restarts, rounded down as `deduplication.round_down` does."""
    last_log: str = ""
    failing: bool = True
    """Whether it still fails, as opposed to has recovered."""
    stuck: bool = False
    """Whether it will not recover by itself: it failed again and again, or cannot even start."""

    @property
    def summary(self) -> str:
        """Pod, message, and the last line of the program's log where it is the cause: not when it was killed."""
        killed = self.reason == _OUT_OF_MEMORY or killing_signal(self.exit_code) is not None
        log = f": {self.last_log}" if self.last_log and not killed else ""
        return f"{f'pod {self.pod}: ' if self.pod else ''}{self.message}{log}"

    def as_status(self) -> dict[str, Any]:
        """The entry in ``status.failures``."""
        entry = {
            "pod": self.pod,
            "container": self.container,
            "reason": self.reason,
            "exitCode": self.exit_code,
            "restarts": self.restarts,
            "message": self.message,
            "lastLog": self.last_log,
        }
        return {key: value for key, value in entry.items() if value or key in _ALWAYS}


def killing_signal(exit_code: int) -> signal.Signals | None:
    """The signal that an exit code stands for (128 + n), or None: 255, for one, is ``exit(-1)``."""
    try:
        return signal.Signals(exit_code - 128)
    except ValueError:
        return None


def with_hint(text: str, hint: str) -> str:
    """``text``, cut to a line, followed by the field to change."""
    tail = f" ({hint})" if hint else ""
    room = LINE_LIMIT - len(tail)
    return (text if len(text) <= room else text[: room - 1].rstrip() + "…") + tail
