"""Where routers and engines send traces, and how they write their logs: environment variables, no flags, so that an
image too old for either starts, too."""

from __future__ import annotations

from urllib.parse import urlsplit

from blade_operator.spec.parse import LLMService
from blade_protocol import environment
from blade_telemetry.options import ENDPOINTS, traces_url
from blade_telemetry.sampling import ARGUMENT, SAMPLER


def telemetry_env(service: LLMService, program: str) -> dict[str, str]:
    """Variables of a router or engine, ``program``: OpenTelemetry's own, as every SDK reads them."""
    found: dict[str, str] = {}
    if service.spec.log_format is not None:
        found[environment.LOG_FORMAT] = service.spec.log_format
    if (tracing := service.spec.tracing) is not None:
        found |= {
            ENDPOINTS[0]: traces_url(tracing.endpoint),
            SAMPLER: "parentbased_traceidratio",
            ARGUMENT: tracing.sampling_ratio,
            "OTEL_SERVICE_NAME": program,
            "OTEL_RESOURCE_ATTRIBUTES": f"service.namespace={service.namespace},blade.service={service.name}",
        }
    return found


def collector_port(service: LLMService) -> int | None:
    """The port that traces go to; None without tracing."""
    if service.spec.tracing is None:
        return None
    parts = urlsplit(service.spec.tracing.endpoint)
    return parts.port or (443 if parts.scheme == "https" else 80)
