"""Jobs around a piece of Python."""

from __future__ import annotations

import sys
from typing import Any

from blade_operator.model.objects import Object


def job(code: str, name: str = "work", *, backoff_limit: int = 6, **pod: Any) -> Object:
    """A Job that runs ``code``; ``pod`` adds to the pod's spec."""
    container = {
        "name": "work",
        "command": [sys.executable, "-c", code],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "backoffLimit": backoff_limit,
            "template": {"spec": {"restartPolicy": "OnFailure", "containers": [container], **pod}},
        },
    }
