"""One thing that went wrong, in words."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

LINE_LIMIT = 400
_ALWAYS = frozenset({"pod", "container", "exitCode", "restarts"})
_OUT_OF_MEMORY = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Failure:
    """A container that failed, a pod that cannot run, pods that cannot be made, or an object that is refused."""

    role: str
    """``engine`` or ``router``; empty for an object that belongs to neither."""
    pod: str
    """Empty where there is no pod."""
    container: str
    """Empty where no container is to blame."""
    reason: str
    message: str
    exit_code: int = 0
    restarts: int = 0
    """Rounded down as ``steady.round_down`` does."""
    last_log: str = ""
    broken: bool = True
    """Still failing, as opposed to recovered."""
    stuck: bool = False
    """Nothing will change by itself: failed again and again, or cannot even start."""

    @property
    def told(self) -> str:
        """Pod, what happened, and the program's own last words where they are the reason: not when it was killed."""
        killed = self.reason == _OUT_OF_MEMORY or killing_signal(self.exit_code) is not None
        words = f": {self.last_log}" if self.last_log and not killed else ""
        return f"{f'pod {self.pod}: ' if self.pod else ''}{self.message}{words}"

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
    """The signal an exit code stands for (128 + n), or None: 255 for one is what ``exit(-1)`` gives."""
    try:
        return signal.Signals(exit_code - 128)
    except ValueError:
        return None


def with_hint(text: str, hint: str) -> str:
    """``text``, cut to a line, with the field to change behind it."""
    tail = f" ({hint})" if hint else ""
    room = LINE_LIMIT - len(tail)
    return (text if len(text) <= room else text[: room - 1].rstrip() + "…") + tail
