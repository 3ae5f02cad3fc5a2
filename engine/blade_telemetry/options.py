"""Whether and where traces go, from a flag or from OpenTelemetry's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from blade_telemetry.sampling import Sampling, read_sampling

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
DISABLED: Final = "OTEL_SDK_DISABLED"
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
PATH: Final = "/v1/traces"


@dataclass(frozen=True)
class TraceOptions:
    """Where traces go, and which."""

    endpoint: str | None
    """URL that takes ``POST`` of spans (OTLP over HTTP); None: as the environment says."""
    sampling: Sampling


def read_options(
    endpoint: str | None, ratio: float | None, environment: Mapping[str, str] = os.environ
) -> TraceOptions | None:
    """What the flags ask for, or the environment; None: tracing is off.

    Args:
        endpoint: ``http://HOST:4318`` of a collector; without a path, ``/v1/traces`` is used.

    Raises:
        ValueError: the environment's sampler is none.
    """
    if environment.get(DISABLED, "").strip().lower() == "true":
        return None
    if endpoint is None:
        if environment.get(EXPORTER, "").strip().lower() == "none" or not any(map(environment.get, ENDPOINTS)):
            return None
        return TraceOptions(None, read_sampling(ratio, environment))
    return TraceOptions(traces_url(endpoint), read_sampling(ratio, environment))


def traces_url(endpoint: str) -> str:
    """The URL that spans are sent to.

    Raises:
        ValueError: ``endpoint`` is no URL of a collector.
    """
    parts = urlsplit(endpoint)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{endpoint!r} is not the URL of a collector (http://HOST:4318)")
    return endpoint if parts.path not in ("", "/") else parts._replace(path=PATH).geturl()
